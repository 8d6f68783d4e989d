// `weft convert`'s work: a run's state becomes the run's own huggingface/ again, on every mesh; dtypes, shards, critics, what is
// refused.
#include "weft/train/convert.h"

#include <ATen/ops/equal.h>

#include <mutex>

#include "weft/checkpoint/manifest.h"
#include "weft/comm/launch.h"
#include "weft/io/atomic_file.h"
#include "weft/io/checkpoint_files.h"
#include "weft/train/test_mesh_oracle.h"
#include "weft/train/test_runs.h"
#include "weft/train/train_state.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

class ConvertTest : public RunTest {
 protected:
  // runs/NAME/checkpoints/global_step_7 of a model whose masters bf16 rounds; the checkpoint that it began with is bf16.
  std::string save_run(const std::string& kind, bool critic = false) {
    const std::string model = dir_.file("of_" + kind), checkpoints = dir_.file("runs/" + kind + "/checkpoints");
    fs::create_directories(model);
    std::ofstream(model + "/config.json") << testing::oracle_model(kind);
    for (const char* name : {"tokenizer.json", "generation_config.json"})
      fs::copy_file(std::string(WEFT_SOURCE_DIR) + "/models/tiny-moe/" + name, model + "/" + name,
                    fs::copy_options::overwrite_existing);
    LoadedModel m = create_model(model, DType::kF32, DType::kBF16, 3);
    if (critic) {  // another head on that trunk
      fs::create_directories(dir_.file("trunk"));
      save_model(m, dir_.file("trunk"));
      m = load_model(dir_.file("trunk"), DType::kF32, "cpu", {}, nullptr, {}, ModelHead::kFreshScore);
    }
    const Optimizer optimizer(m.model->parameters(), OptimRecipe{}, 10);
    TrainProgress progress;
    progress.command = "train", progress.step = 7;
    save_checkpoint(critic ? checkpoints + "/critic" : checkpoints, m, optimizer, progress, 0);
    return dir_.file("runs/" + kind);
  }
  ConvertReport convert(const std::string& from, const std::string& to, const ConvertOptions& options = {},
                        const std::string& mesh = "") {
    const ConvertSource source = find_convert_source(from);
    if (mesh.empty()) return convert_checkpoint(source, to, options);
    const ParallelDims dims = parse_parallel_dims(mesh, 0, {"oe"});
    CommOptions comm;
    comm.threads_per_rank = 1;
    ConvertReport report;
    run_ranks(static_cast<int>(dims.world()), comm, [&](Communicator& world) {
      const ConvertReport mine = convert_checkpoint(source, to, options, {}, make_rank_mesh(dims, world));
      if (world.rank() == 0) report = mine;
    });
    return report;
  }
  static std::map<std::string, std::string> files_below(const std::string& dir) {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(dir))
      if (entry.is_regular_file()) out[fs::relative(entry.path(), dir).string()] = read_bytes(entry.path().string());
    return out;
  }
  // No temporary directory either.
  void expect_nothing_left(const std::string& out) const {
    for (const auto& entry : fs::directory_iterator(dir_.path()))
      EXPECT_FALSE(entry.path().filename().string().starts_with(out)) << entry.path();
  }
};

TEST_F(ConvertTest, AStateOnEveryMeshIsTheRunsOwnHuggingFaceDirectory) {
  const std::map<std::string, std::vector<std::string>> cases = {
      {"moe", {"", "fsdp=3", "replicate=2,fsdp=2,tp=2,ep=4"}},
      {"dense", {"tp=2"}},
      {"over_encoded", {"fsdp=2,oe=2"}},
  };
  int count = 0;
  for (const auto& [kind, meshes] : cases) {
    const std::string run = save_run(kind), checkpoint = run + "/checkpoints/global_step_7";
    const auto own = files_below(checkpoint + "/huggingface");
    ASSERT_TRUE(own.count("model.safetensors") && own.count("config.json") && own.count("tokenizer.json"));
    // As a run, its checkpoints, `latest`, or one of them.
    const std::vector<std::string> names = {run, run + "/checkpoints", run + "/checkpoints/latest", checkpoint, checkpoint + "/"};
    for (const std::string& mesh : meshes) {
      SCOPED_TRACE(kind + " " + mesh);
      const std::string out = dir_.file(fmt::format("out_{}", count));
      const ConvertReport r = convert(names[static_cast<size_t>(count++) % names.size()], out, {}, mesh);
      EXPECT_EQ(r.step, 7);
      EXPECT_EQ(r.files, 1);
      const auto got = files_below(out);
      EXPECT_EQ(got.size(), own.size());
      for (const auto& [name, bytes] : own) EXPECT_TRUE(got.count(name) && got.at(name) == bytes) << name;
    }
  }
  // The comparison sees a weight that changed.
  const std::string run = save_run("dense"), file = run + "/checkpoints/global_step_7/huggingface/model.safetensors";
  std::string bytes = read_bytes(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  EXPECT_NE(read_bytes(dir_.file("out_0") + "/model.safetensors"), bytes);
}

TEST_F(ConvertTest, Float32HasTheMastersAndComesBackAsBfloat16) {
  const std::string run = save_run("moe"), state = run + "/checkpoints/global_step_7/state/master.safetensors";
  ConvertOptions options;
  options.dtype = DType::kF32;
  options.max_shard_bytes = 20'000;
  const std::string wide = dir_.file("wide"), narrow = dir_.file("narrow");
  const ConvertReport r = convert(run, wide, options, "fsdp=2,ep=2");
  EXPECT_GT(r.files, 2);
  EXPECT_TRUE(fs::exists(wide + "/" + kSafetensorsIndex));
  const LoadedModel m = load_model(wide, std::nullopt);
  EXPECT_EQ(m.hf.dtype, DType::kF32) << "config.json says so";
  const SafetensorsFile masters(state);
  int64_t rounded = 0;
  for (const nn::Parameter* p : m.model->parameters()) {
    const auto expected = masters.bytes(p->name());
    ASSERT_EQ(p->master().nbytes(), expected.size());
    EXPECT_EQ(std::memcmp(p->master().data_ptr(), expected.data(), expected.size()), 0) << p->name();
    rounded += !at::equal(p->master().to(at::kBFloat16).to(at::kFloat), p->master());
  }
  EXPECT_GT(rounded, 10) << "bf16 would not have them";

  // A Hugging Face checkpoint in, another dtype out: the run's own bytes again.
  options.dtype = DType::kBF16;
  options.max_shard_bytes = kMaxShardBytes;
  EXPECT_FALSE(convert(wide, narrow, options, "fsdp=2").step);
  EXPECT_EQ(HfConfig::load(narrow).dtype, DType::kBF16);
  const Checkpoint own(run + "/checkpoints/global_step_7/huggingface"), got(narrow);
  ASSERT_EQ(own.tensors().size(), got.tensors().size());
  for (const TensorInfo& t : own.tensors()) {
    EXPECT_EQ(got.tensor(t.name).dtype, DType::kBF16);
    const auto a = own.bytes(t.name), b = got.bytes(t.name);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << t.name;
  }
}

TEST_F(ConvertTest, ACriticsStateKeepsItsScoreHead) {
  const std::string run = save_run("dense", /*critic=*/true), out = dir_.file("critic");
  convert(run + "/checkpoints/critic", out, {}, "fsdp=2");
  const auto own = files_below(run + "/checkpoints/critic/global_step_7/huggingface"), got = files_below(out);
  EXPECT_TRUE(own == got);
  EXPECT_TRUE(Checkpoint(out).contains("score.weight"));
  EXPECT_FALSE(Checkpoint(out).contains("lm_head.weight"));
  EXPECT_NO_THROW(load_model(out, DType::kF32, "cpu", {}, nullptr, {}, ModelHead::kScore));
}

TEST_F(ConvertTest, WhatIsNoCheckpointIsNamed) {
  const auto refused = [](const std::string& path) { return message_of<FileError>([&] { find_convert_source(path); }); };
  fs::create_directories(dir_.file("empty"));
  EXPECT_NE(refused(dir_.file("empty")).find("no run's directory"), std::string::npos);
  fs::create_directories(dir_.file("young/checkpoints"));
  EXPECT_NE(refused(dir_.file("young")).find("holds no complete checkpoint"), std::string::npos);
  EXPECT_NE(refused(dir_.file("nowhere")).find("nowhere"), std::string::npos);
  const std::string run = save_run("dense"), checkpoint = run + "/checkpoints/global_step_7";
  const std::string bad = read_bytes(checkpoint + "/manifest.json");
  fs::remove(checkpoint + "/manifest.json");
  EXPECT_NE(refused(checkpoint).find("not a complete checkpoint"), std::string::npos);
  EXPECT_NE(refused(run).find("not complete"), std::string::npos);
}

// Damage is found before anything is written, on every rank; nothing stays.
TEST_F(ConvertTest, ADamagedStateIsRefused) {
  const std::string checkpoint = save_run("dense") + "/checkpoints/global_step_7";
  const std::string file = checkpoint + "/state/master.safetensors", good = read_bytes(file);
  std::string flipped = good;
  flipped[good.size() - 3] = static_cast<char>(flipped[good.size() - 3] ^ 2);
  for (const std::string& bytes : {flipped, good.substr(0, good.size() - 8), std::string()})
    for (const char* mesh : {"", "fsdp=2"}) {
      std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
      EXPECT_NE(message_of<Error>([&] { convert(checkpoint, dir_.file("refused"), {}, mesh); }).find("master.safetensors"),
                std::string::npos);
      expect_nothing_left("refused");
    }
  std::ofstream(file, std::ios::binary | std::ios::trunc) << good;
  fs::remove(checkpoint + "/huggingface/config.json");
  EXPECT_NE(message_of<FileError>([&] { convert(checkpoint, dir_.file("refused")); }).find("config.json"), std::string::npos);
}

TEST_F(ConvertTest, TheOutputIsKeptSafe) {
  const std::string run = save_run("dense"), checkpoint = run + "/checkpoints/global_step_7", out = dir_.file("there");
  const ConvertSource source = find_convert_source(run);
  const auto refused = [&](const std::string& to, bool overwrite) {
    return message_of<UsageError>([&] { check_convert_output(source, to, overwrite); });
  };
  ConvertOptions options;
  options.overwrite = true;
  convert(run, out, options);  // not there yet
  const auto first = files_below(out);
  EXPECT_NE(refused(out, false).find("already exists"), std::string::npos);
  EXPECT_NE(refused(out + "/", false).find("already exists"), std::string::npos);
  std::ofstream(out + "/old_file") << "x";
  convert(run, out, options, "fsdp=2");
  EXPECT_TRUE(files_below(out) == first) << "replaced whole";
  // Somebody's other files; what is read.
  fs::create_directories(dir_.file("mine"));
  dir_.write("mine/thesis.txt", "x");
  EXPECT_NE(refused(dir_.file("mine"), true).find("no model's directory"), std::string::npos);
  EXPECT_NE(refused(dir_.file("train.jsonl"), true).find("no model's directory"), std::string::npos);
  for (const std::string& inside : {checkpoint, checkpoint + "/huggingface", checkpoint + "/new", run, dir_.path()})
    EXPECT_NE(refused(inside, true).find("choose another output"), std::string::npos) << inside;
  const std::string other = save_run("moe") + "/checkpoints/global_step_7/huggingface";
  EXPECT_NE(refused(other, true).find("lies in a run's checkpoint"), std::string::npos);
  fs::create_directory_symlink(checkpoint, dir_.file("link"));
  EXPECT_NE(refused(dir_.file("link/huggingface"), true).find("choose another output"), std::string::npos);
  EXPECT_NO_THROW(check_convert_output(source, dir_.file("other/deep"), false));
}

// A signal, or an error of rank 0, ends it on all ranks and leaves nothing.
TEST_F(ConvertTest, StopsAndLeavesNothing) {
  const std::string run = save_run("dense");
  for (const char* mesh : {"", "fsdp=2,tp=2"}) {
    ConvertOptions options;
    options.progress = [&](int64_t done, int64_t) {
      if (done == 3) request_stop(SIGTERM);
    };
    EXPECT_NE(message_of<StoppedError>([&] { convert(run, dir_.file("stopped"), options, mesh); }).find("was not written"),
              std::string::npos);
    expect_nothing_left("stopped");
    clear_stop_request();
    options.progress = [&](int64_t done, int64_t) {
      if (done == 3) throw SystemError("the disk is full");
    };
    EXPECT_NE(message_of<SystemError>([&] { convert(run, dir_.file("stopped"), options, mesh); }).find("the disk is full"),
              std::string::npos);
    expect_nothing_left("stopped");
  }
}

}  // namespace
}  // namespace weft
