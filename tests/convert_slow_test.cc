// `weft convert` as a user runs it: the program, processes of mpirun, a kill. Mistakes: bad_input_test.cc.
#include <csignal>

#include "jobs.h"
#include "weft/train/train_state.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class ConvertProgram : public JobTest {
 protected:
  ConvertProgram() {
    LoadedModel m = load_model(tiny_model(), DType::kF32);
    for (DiskTensor& t : m.manifest) t.dtype = DType::kBF16;
    m.hf.raw_json = m.hf.json_with_dtype(DType::kBF16);
    const Optimizer optimizer(m.model->parameters(), OptimRecipe{}, 10);
    TrainProgress progress;
    progress.command = "train", progress.step = 4;
    save_checkpoint(dir_.file("runs/r/checkpoints"), m, optimizer, progress, 0);
  }
  // The exit code; `output`: of both streams.
  int weft(const Words& words, std::string* output = nullptr, int processes = 1) const {
    Words argv = processes > 1 ? Job::mpirun() : Words();
    if (processes > 1) argv.insert(argv.end(), {"-n", std::to_string(processes)});
    argv.push_back(WEFT_PROGRAM);
    argv.insert(argv.end(), words.begin(), words.end());
    Job job(argv);
    const int code = job.finish();
    if (output) *output = job.output();
    return code;
  }
  void expect_the_runs_own(const std::string& out) const {
    for (const char* name : {"model.safetensors", "config.json", "tokenizer.json"})
      EXPECT_TRUE(read_bytes(out + "/" + name) == read_bytes(run_file("r", "checkpoints/global_step_4/huggingface/") + name))
          << name;
  }
};

TEST_F(ConvertProgram, ARunsStateByThreadsAndProcesses) {
  const std::string run = dir_.file("runs/r");
  std::string output;
  EXPECT_EQ(weft({"convert", run, dir_.file("threads"), "--mesh", "fsdp=2,ep=2"}, &output), kExitDone) << output;
  expect_the_runs_own(dir_.file("threads"));
  EXPECT_NE(output.find("the fp32 masters of step 4"), std::string::npos) << output;
  if (with_mpi()) {
    EXPECT_EQ(weft({"convert", run + "/checkpoints/latest", dir_.file("processes"), "--mesh", "fsdp=2"}, &output, 2), kExitDone)
        << output;
    expect_the_runs_own(dir_.file("processes"));
    EXPECT_EQ(count_of(output, "the fp32 masters"), 1) << output;
    EXPECT_EQ(weft({"convert", run, dir_.file("no_mesh")}, &output, 2), kExitUsage) << output;
    EXPECT_NE(output.find("needs --mesh"), std::string::npos) << output;
  }
  // A model like any other.
  EXPECT_EQ(weft({"convert", run, dir_.file("wide"), "--dtype", "float32", "--max-shard-size", "20KB"}, &output), kExitDone)
      << output;
  EXPECT_TRUE(fs::exists(dir_.file("wide/model.safetensors.index.json")));
  dir_.write("val.jsonl", arithmetic_rows(2));
  EXPECT_EQ(weft({"eval", dir_.file("r.toml"), "--model", dir_.file("wide"), "data.val_files=" + dir_.file("val.jsonl"),
                  "reward.funcs=exact_match"},
                 &output),
            kExitDone)
      << output;
}

TEST_F(ConvertProgram, AKillLeavesNothingUnderTheName) {
  const std::string out = dir_.file("killed");
  const auto begun = [&] {
    for (const auto& entry : fs::directory_iterator(dir_.path()))
      if (entry.path().filename().string().starts_with("killed")) return true;
    return false;
  };
  Job job({WEFT_PROGRAM, "convert", dir_.file("runs/r"), out, "--mesh", "fsdp=4"});
  job.run_until(begun);
  ::kill(job.pid(), SIGKILL);
  job.finish();
  if (fs::exists(out)) expect_the_runs_own(out);  // it was faster
  std::string output;
  EXPECT_EQ(weft({"convert", dir_.file("runs/r"), out, "--overwrite"}, &output), kExitDone) << output;
  expect_the_runs_own(out);
}

}  // namespace
}  // namespace weft
