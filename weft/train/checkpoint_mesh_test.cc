// Checkpoints over ranks: the same files whatever mesh wrote them, the same state on whatever mesh reads them, bytes counted,
// directories that a rank does not see, errors of one rank, damage.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "weft/checkpoint/manifest.h"
#include "weft/io/atomic_file.h"
#include "weft/io/content_hash.h"
#include "weft/io/safetensors.h"
#include "weft/train/run_tensors.h"
#include "weft/train/test_mesh_oracle.h"
#include "weft/train/test_runs.h"
#include "weft/train/train_state.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kAwkwardMeshes = {"fsdp=3",           "fsdp=2,tp=2", "fsdp=2,ep=2", "replicate=2,fsdp=2",
                                                 "fsdp=2,tp=2,ep=4", "fsdp=5"};

// A model with its optimizer on one rank of a mesh; the values of every tensor are a function of name and place.
struct RankState {
  RankState(const std::string& dir, std::shared_ptr<const RankMesh> mesh, bool filled)
      : model(create_model(dir, DType::kF32, DType::kBF16, 7, "cpu", {}, mesh)),
        optimizer(model.model->parameters(), OptimRecipe{}, 10),
        tensors(model, &optimizer) {
    at::NoGradGuard guard;
    for (const TensorFile& f : tensors.state_files())
      for (const StoredTensor& t : f.tensors) {
        const at::Tensor& local = tensors.item(t.entry.parameter).local;
        if (filled)
          local.copy_(expected(t));
        else
          local.fill_(NAN);
        bytes += local.numel() * 4;
      }
    progress.step = 3;
    progress.updates = 6;
    progress.cursor = {1, 2};
    StepUnderWay u;
    Trajectory t;
    t.prompt_ids = {1, 4}, t.response_ids = {5, 2}, t.rollout_log_probs = {-0.1f, -0.2f}, t.response_mask = {1, 1};
    t.weight_versions = {{6, 0, 2}}, t.finish_reason = "stop";
    u.trajectories = {t};
    u.old_log_probs = {{-0.1f, -0.25f}};
    u.updates_done = 1;
    progress.under_way = u;
  }
  // This rank's part of what the tensor shall be.
  at::Tensor expected(const StoredTensor& t) const {
    int64_t n = 1;
    for (int64_t s : t.entry.shape) n *= s;
    const auto seed =
        static_cast<double>(hash_combine(n, t.entry.name.size(), static_cast<uint64_t>(t.entry.name.back())) % 1000);
    const at::Tensor full = (at::arange(n, at::kFloat) * 0.37 + seed).sin().reshape(t.entry.shape);
    const ParameterPart mine = tensors.held(t.entry.parameter);
    const at::Tensor part = at::empty_like(mine.local);
    for (const LocalBox& b : mine.boxes) narrow_to(part, {b.local_offset, b.box.size}).copy_(narrow_to(full, b.box));
    return part;
  }
  void expect_equal(const std::string& where) const {
    for (const TensorFile& f : tensors.state_files())
      for (const StoredTensor& t : f.tensors)
        EXPECT_TRUE(at::equal(tensors.item(t.entry.parameter).local, expected(t))) << t.entry.parameter << " on " << where;
  }

  LoadedModel model;
  Optimizer optimizer;
  RunTensors tensors;
  TrainProgress progress;
  int64_t bytes = 0;  // of all its tensors
};

class CheckpointMeshTest : public RunTest {
 protected:
  std::string model_dir(const std::string& kind) {
    const std::string dir = dir_.file(kind);
    if (fs::create_directories(dir)) std::ofstream(dir + "/config.json") << testing::oracle_model(kind);
    return dir;
  }
  // On each rank of the mesh ("": one rank without), a lock around what the function says to gtest.
  void on(const std::string& kind, const std::string& mesh, bool filled,
          const std::function<void(RankState&, int64_t rank)>& fn) {
    const std::string dir = model_dir(kind);
    if (mesh.empty()) {
      RankState one(dir, nullptr, filled);
      return fn(one, 0);
    }
    const ParallelDims dims = parse_parallel_dims(mesh, 0, {"oe"});
    CommOptions comm;
    comm.threads_per_rank = 1;
    run_ranks(static_cast<int>(dims.world()), comm, [&](Communicator& world) {
      RankState state(dir, make_rank_mesh(dims, world), filled);
      fn(state, world.rank());
    });
  }
  std::vector<CheckpointIo> save(const std::string& kind, const std::string& mesh, const std::string& to) {
    std::mutex mutex;
    std::vector<CheckpointIo> all;
    on(kind, mesh, true, [&](RankState& s, int64_t) {
      CheckpointIo io;
      save_checkpoint(to, s.model, s.optimizer, s.progress, 0, &io);
      const std::lock_guard lock(mutex);
      all.push_back(io);
    });
    return all;
  }
  static std::map<std::string, std::string> files_below(const std::string& dir) {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(dir))
      if (entry.is_regular_file()) out[fs::relative(entry.path(), dir).string()] = read_text_file(entry.path().string());
    return out;
  }
  static int64_t tensor_bytes(const std::string& dir) {
    int64_t n = 0;
    for (const char* file : {"huggingface/model.safetensors", "state/master.safetensors", "state/optimizer.safetensors"}) {
      const SafetensorsFile f(dir + "/" + file);
      for (const TensorInfo& t : f.tensors()) n += t.num_bytes();
    }
    return n;
  }
  static void expect_same_files(const std::string& a, const std::string& b) {
    const auto x = files_below(a), y = files_below(b);
    EXPECT_GE(x.size(), 8u);
    EXPECT_EQ(x.size(), y.size());
    for (const auto& [name, bytes] : x) EXPECT_TRUE(y.count(name) && y.at(name) == bytes) << name << " of " << a << " and " << b;
  }
};

// With this every pair of meshes is tried: what any writes is what one rank writes, and any reads that.
TEST_F(CheckpointMeshTest, EveryMeshWritesTheSameFilesAndReadsThem) {
  for (const std::string kind : {"moe", "dense", "over_encoded"}) {
    const std::string one = dir_.file("one_" + kind), first = one + "/global_step_3";
    save(kind, "", one);
    const int64_t all = tensor_bytes(first);
    std::vector<std::string> meshes = kAwkwardMeshes;
    if (kind == "dense") meshes = {"fsdp=2,tp=2", "fsdp=3"};
    if (kind == "over_encoded") meshes = {"fsdp=3", "fsdp=4,oe=2"};
    for (const std::string& mesh : meshes) {
      SCOPED_TRACE(kind + " " + mesh);
      const std::string dir = dir_.file("of_" + kind + mesh);
      int64_t written = 0, most = 0;
      for (const CheckpointIo& io : save(kind, mesh, dir)) {
        EXPECT_TRUE(io.by_all_ranks);
        written += io.bytes;
        most = std::max(most, io.bytes);
      }
      EXPECT_EQ(written, all) << "each byte once";
      expect_same_files(first, dir + "/global_step_3");
      std::mutex mutex;
      const int64_t world = parse_parallel_dims(mesh, 0, {"oe"}).world();
      EXPECT_LT(most, all * 2 / world) << "the ranks share the work";
      on(kind, mesh, false, [&](RankState& s, int64_t rank) {
        CheckpointIo io;
        const TrainProgress p = load_checkpoint(first, "", s.model, s.optimizer, &io);
        EXPECT_TRUE(io.by_all_ranks);
        EXPECT_EQ(io.bytes, s.bytes) << "what it keeps and nothing else";
        EXPECT_EQ(p.updates, 6);
        s.expect_equal(fmt::format("rank {}", rank));
      });
    }
    on(kind, "", false, [&](RankState& s, int64_t) {
      load_checkpoint(dir_.file("of_" + kind + "fsdp=3/global_step_3"), "", s.model, s.optimizer);
      s.expect_equal("one rank");
    });
  }
}

// Weights in huggingface/ are read by their boxes, too.
TEST_F(CheckpointMeshTest, HuggingFaceBytesAreCounted) {
  save("moe", "fsdp=3", dir_.file("c"));
  const Checkpoint disk(dir_.file("c/global_step_3/huggingface"));
  on("moe", "fsdp=2,tp=2,ep=4", false, [&](RankState& s, int64_t) {
    int64_t read = 0, kept = 0;
    load_hf_weights(
        disk, s.model.entries, s.model.tied_head, [&](const std::string& name) { return s.tensors.held("master/" + name); },
        &read);
    for (const nn::Parameter* p : s.model.model->parameters()) kept += p->master().numel() * 2;
    EXPECT_EQ(read, kept) << "bf16";
  });
}

TEST_F(CheckpointMeshTest, WhereARankDoesNotSeeTheDirectoryRankZeroWritesAndReads) {
  const std::string one = dir_.file("one"), dir = dir_.file("three"), elsewhere = dir_.file("elsewhere");
  save("moe", "", one);
  on("moe", "fsdp=2,ep=2", true, [&](RankState& s, int64_t rank) {
    CheckpointIo io;
    save_checkpoint(rank == 1 ? elsewhere : dir, s.model, s.optimizer, s.progress, 0, &io);
    EXPECT_FALSE(io.by_all_ranks);
    EXPECT_EQ(io.bytes, rank == 0 ? tensor_bytes(dir + "/global_step_3") : 0);
  });
  expect_same_files(one + "/global_step_3", dir + "/global_step_3");
  EXPECT_FALSE(fs::exists(elsewhere));
  on("moe", "fsdp=2,tp=2", false, [&](RankState& s, int64_t rank) {
    const auto latest = latest_checkpoint(rank == 2 ? elsewhere : dir, s.model.mesh ? &s.model.mesh->world : nullptr);
    ASSERT_EQ(latest, (rank == 2 ? elsewhere : dir) + "/global_step_3");
    CheckpointIo io;
    const TrainProgress p = load_checkpoint(*latest, "", s.model, s.optimizer, &io);
    EXPECT_FALSE(io.by_all_ranks);
    s.expect_equal(fmt::format("rank {}", rank));
    ASSERT_TRUE(p.under_way);
    EXPECT_EQ(p.under_way->trajectories, s.progress.under_way->trajectories);
    EXPECT_EQ(p.under_way->old_log_probs, s.progress.under_way->old_log_probs);
  });
  // A rank that sees another run's checkpoint of that step does not read it.
  fs::create_directories(elsewhere);
  fs::copy(dir + "/global_step_3", elsewhere + "/global_step_3", fs::copy_options::recursive);
  std::ofstream(elsewhere + "/global_step_3/state/progress.json") << "{}";
  on("moe", "fsdp=2", false, [&](RankState& s, int64_t rank) {
    CheckpointIo io;
    load_checkpoint((rank == 1 ? elsewhere : dir) + "/global_step_3", "", s.model, s.optimizer, &io);
    EXPECT_FALSE(io.by_all_ranks);
    s.expect_equal(fmt::format("rank {}", rank));
  });
}

// Rank 0's error while it reads for the others reaches them.
TEST_F(CheckpointMeshTest, DamageIsFoundByAllRanksAlsoWhereRankZeroReads) {
  const std::string dir = dir_.file("c"), file = dir + "/global_step_3/state/master.safetensors";
  save("moe", "fsdp=3", dir);
  const std::string last = SafetensorsFile(file).tensors().back().name;
  std::string bytes = read_bytes(file);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 4);
  std::ofstream(file, std::ios::binary) << bytes;
  for (const bool seen : {true, false}) {
    std::atomic<int> refused = 0;
    on("moe", "fsdp=3", false, [&](RankState& s, int64_t rank) {
      try {
        load_checkpoint((rank == 1 && !seen ? dir_.file("none") : dir) + "/global_step_3", "", s.model, s.optimizer);
      } catch (const FileError& e) {
        EXPECT_NE(std::string(e.what()).find(fmt::format("master.safetensors: tensor \"{}\": is damaged", last)),
                  std::string::npos)
            << e.what();
        ++refused;
      }
    });
    EXPECT_EQ(refused, 3);
  }
}

// A rank that may not write: an error on every rank that names it, the former checkpoint untouched, nothing left behind.
TEST_F(CheckpointMeshTest, AnErrorOfOneRankEndsTheSaveOnAll) {
  if (::geteuid() != 0) return;  // only root can take a thread's rights
  const std::string dir = dir_.file("c");
  ::chmod(dir_.path().c_str(), 0755);
  save("moe", "fsdp=3", dir);
  const auto before = files_below(dir);
  std::mutex mutex;
  std::vector<std::string> errors;
  on("moe", "fsdp=3", true, [&](RankState& s, int64_t rank) {
    s.progress.step = 4;
    if (rank == 1) ::syscall(SYS_setfsuid, 65534);  // of this thread
    std::string error;
    try {
      save_checkpoint(dir, s.model, s.optimizer, s.progress, 1);
    } catch (const SystemError& e) {
      error = e.what();
    }
    if (rank == 1) ::syscall(SYS_setfsuid, 0);
    EXPECT_NE(error.find("safetensors: cannot open: Permission denied; choose a directory"), std::string::npos) << error;
    EXPECT_EQ(error.find("rank 1: "), rank == 1 ? std::string::npos : 0) << error;
    const std::lock_guard lock(mutex);
    errors.push_back(error);
  });
  EXPECT_EQ(errors.size(), 3u);
  EXPECT_TRUE(files_below(dir) == before);
  // Rank 0's own, before anything is written.
  fs::rename(dir, dir + "_aside");
  std::ofstream(dir) << "a file";
  int refused = 0;
  on("moe", "fsdp=3", true, [&](RankState& s, int64_t) {
    try {
      save_checkpoint(dir, s.model, s.optimizer, s.progress, 1);
    } catch (const std::exception&) {
      const std::lock_guard lock(mutex);
      ++refused;
    }
  });
  EXPECT_EQ(refused, 3);
}

// ---- Damage on one rank

class CheckpointDamage : public CheckpointMeshTest {
 protected:
  CheckpointDamage() {
    save("moe", "", dir);
    const std::string path = root + "/" + kManifestName;
    manifest = parse_manifest(read_text_file(path), path);
  }
  std::string load_error() {
    try {
      on("moe", "", false, [&](RankState& s, int64_t) { load_checkpoint(root, "", s.model, s.optimizer); });
    } catch (const FileError& e) {
      return e.what();
    }
    return "";
  }
  const std::string dir = dir_.file("damaged"), root = dir + "/global_step_3";
  CheckpointManifest manifest;
};

TEST_F(CheckpointDamage, AFlippedBitIsFoundWhatIsCutOffToo) {
  EXPECT_EQ(load_error(), "");
  EXPECT_GT(check_everything(manifest, root), tensor_bytes(root));
  const CounterRng rng(3);
  for (const auto& [file, f] : manifest.files) {
    const std::string path = root + "/" + file, good = read_bytes(path);
    const bool of_state = file.starts_with("state/");
    for (uint64_t i = 0; i < 6; ++i) {
      std::string bad = good;
      char& byte = bad[rng.below(i, bad.size())];
      byte = static_cast<char>(byte ^ (1 << rng.below(i + 100, 8)));
      std::ofstream(path, std::ios::binary) << bad;
      EXPECT_NE(message_of<FileError>([&] { check_everything(manifest, root); }).find(path), std::string::npos) << file;
      EXPECT_EQ(load_error().find(path) != std::string::npos, of_state) << file << ": a resume reads state/ only";
    }
    std::ofstream(path, std::ios::binary) << good;
    fs::resize_file(path, good.size() - 1);
    EXPECT_NE(load_error().find(path), std::string::npos) << file << ": sizes of all files are checked";
    fs::remove(path);
    EXPECT_NE(load_error().find(path), std::string::npos) << file;
    std::ofstream(path, std::ios::binary) << good;
  }
  EXPECT_EQ(load_error(), "");
}

TEST_F(CheckpointDamage, ElementsThatChangePlacesAreFound) {
  const SafetensorsFile file(root + "/state/master.safetensors");
  const TensorInfo& t = file.tensors().back();
  std::string bytes = read_bytes(file.path());
  std::swap_ranges(bytes.begin() + t.begin, bytes.begin() + t.begin + 4, bytes.begin() + t.begin + 8);
  std::ofstream(root + "/state/master.safetensors", std::ios::binary) << bytes;
  EXPECT_NE(load_error().find("is damaged"), std::string::npos);
}

TEST_F(CheckpointDamage, ManifestsThatAreNoneAreRefused) {
  const std::string good = read_bytes(root + "/" + kManifestName), hash(16, '0');
  EXPECT_EQ(parse_manifest(manifest_text(manifest), "m"), manifest);
  for (const std::string& bad :
       {good.substr(0, good.size() / 2), std::string("[]"), std::string(R"({"format": 3, "files": {}})"),
        std::string(R"({"format": 2})"), R"({"format": 2, "files": {"../x": {"size": 1, "hash": ")" + hash + R"("}}})",
        R"({"format": 2, "files": {"/x": {"size": 1, "hash": ")" + hash + R"("}}})",
        std::string(R"({"format": 2, "files": {"x": {"size": 1, "hash": "0"}}})"),
        R"({"format": 2, "files": {"x": {"size": "1", "hash": ")" + hash + R"("}}})"})
    EXPECT_NE(message_of<FileError>([&] { parse_manifest(bad, "m.json"); }).find("m.json"), std::string::npos) << bad;
}

TEST_F(CheckpointDamage, CheckpointsWithoutAManifestLoadIfOfFormat1) {
  fs::remove(root + "/" + kManifestName);
  EXPECT_NE(load_error().find("not a complete checkpoint"), std::string::npos);
  EXPECT_NE(message_of<FileError>([&] { latest_checkpoint(dir); }).find("not complete"), std::string::npos);
  auto progress = nlohmann::json::parse(read_bytes(root + "/state/progress.json"));
  progress["format"] = 1;
  std::ofstream(root + "/state/progress.json") << progress.dump();
  EXPECT_EQ(load_error(), "");
  EXPECT_EQ(latest_checkpoint(dir), root);
}

// ---- What a killed save leaves (tests/checkpoint_kill_slow_test.cc kills real ones)

TEST_F(CheckpointDamage, ASaveThatWasKilledBetweenTheRenames) {
  const std::string three = read_bytes(dir + "/latest"), manifest_three = hash_text(hash_file(root + "/" + kManifestName));
  // The directory was renamed, `latest` not written.
  std::ofstream(dir + "/latest") << "global_step_2\n";
  std::ofstream(dir + "/latest.next") << "global_step_3 " << manifest_three << "\n";
  EXPECT_EQ(latest_checkpoint(dir), root);
  // Not renamed: what is there under the name is another.
  std::ofstream(dir + "/latest.next") << "global_step_3 0123456789abcdef\n";
  EXPECT_NE(message_of<FileError>([&] { latest_checkpoint(dir); }).find("global_step_2"), std::string::npos);
  std::ofstream(dir + "/latest.next") << "global_step_3 " << manifest_three << "\n";
  fs::create_directories(dir + "/global_step_3.tmp-12ab");
  clean_checkpoints(dir);
  EXPECT_EQ(read_bytes(dir + "/latest"), three);
  EXPECT_FALSE(fs::exists(dir + "/latest.next"));
  EXPECT_FALSE(fs::exists(dir + "/global_step_3.tmp-12ab"));
  // Replaced where two names cannot be exchanged: the old one is aside.
  fs::rename(root, root + ".old");
  EXPECT_EQ(latest_checkpoint(dir), root + ".old");
  clean_checkpoints(dir);
  EXPECT_EQ(latest_checkpoint(dir), root);
  fs::create_directories(root + ".old");
  clean_checkpoints(dir);
  EXPECT_FALSE(fs::exists(root + ".old"));
  EXPECT_EQ(load_error(), "");
}

}  // namespace
}  // namespace weft
