// A model's stream against its checkpoint on disk, byte for byte, on meshes of up to 8 ranks.
#include <ATen/ops/equal.h>

#include <cstring>
#include <mutex>

#include "weft/comm/launch.h"
#include "weft/train/test_mesh_oracle.h"
#include "weft/train/test_runs.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

class ExportModelTest : public ::testing::Test {
 protected:
  // Writes a checkpoint; `disk` in its dtype.
  std::string checkpoint(const std::string& kind, DType disk) {
    const std::string from = dir_.file(kind + ".config"), to = dir_.file(kind);
    fs::create_directories(from);
    fs::create_directories(to);
    auto config = nlohmann::ordered_json::parse(testing::oracle_model(kind == "tied" ? "dense" : kind));
    if (kind == "tied") config["tie_word_embeddings"] = true;
    std::ofstream(from + "/config.json") << config.dump();
    LoadedModel m = create_model(from, DType::kF32, disk, 11);
    m.manifest[1].dtype = DType::kF32;                                                        // a mixture
    if (kind == "tied") m.manifest.insert(m.manifest.begin() + 2, {"lm_head.weight", disk});  // a redundant head stays
    save_model(m, to);
    return to;
  }
  // On each rank of the mesh; "" is one rank without.
  static void on(const std::string& mesh, const std::string& dir,
                 const std::function<void(const LoadedModel&, int64_t rank, int64_t ranks)>& fn) {
    const ParallelDims dims = parse_parallel_dims(mesh.empty() ? "fsdp=1" : mesh, 0, {"oe"});
    if (mesh.empty()) return fn(load_model(dir, DType::kF32), 0, 1);
    CommOptions comm;
    comm.threads_per_rank = 1;
    run_ranks(static_cast<int>(dims.world()), comm, [&](Communicator& world) {
      fn(load_model(dir, DType::kF32, "cpu", {}, make_rank_mesh(dims, world)), world.rank(), world.size());
    });
  }

  TemporaryDirectory dir_;
};

TEST_F(ExportModelTest, GivesTheCheckpointsNamesShapesAndBytesInItsOrder) {
  const std::map<std::string, std::vector<std::string>> cases = {
      {"moe", {"", "fsdp=3", "cp=2,tp=2", "replicate=2,fsdp=2,tp=2,ep=4"}},
      {"three_experts", {"fsdp=5"}},
      {"dense", {"fsdp=7"}},
      {"tied", {"", "fsdp=2,tp=2"}},
      {"over_encoded", {"fsdp=2,cp=2,tp=2,ep=4,oe=4"}},
  };
  for (const auto& [kind, meshes] : cases) {
    const Checkpoint disk(checkpoint(kind, DType::kBF16));
    std::map<std::string, at::Tensor> rounded;  // of one rank, as a dtype that was asked for
    for (const std::string& mesh : meshes) {
      SCOPED_TRACE(kind + " on " + mesh);
      std::mutex mutex;
      on(mesh, disk.dir(), [&](const LoadedModel& m, int64_t rank, int64_t ranks) {
        ExportOptions options;
        options.root = static_cast<int>(ranks / 2);
        options.watermark = 4096;
        for (const std::optional<DType> dtype : {std::optional<DType>(), std::optional(DType::kF16)}) {
          size_t next = 0;
          const ExportReport r = export_stream(m, dtype, options, [&](const StoredTensor& t, const at::Tensor& full) {
            const std::lock_guard lock(mutex);
            ASSERT_LT(next, disk.tensors().size());
            const TensorInfo& expected = disk.tensors()[next++];
            EXPECT_EQ(t.entry.name, expected.name);
            EXPECT_EQ(full.sizes().vec(), expected.shape) << expected.name;
            EXPECT_EQ(t.dtype, dtype.value_or(expected.dtype));
            if (dtype) {
              const auto [at, is_new] = rounded.try_emplace(t.entry.name, full.clone());
              EXPECT_TRUE(is_new || at::equal(at->second, full)) << t.entry.name;
              EXPECT_EQ(full.scalar_type(), at::kHalf);
              return;
            }
            const auto bytes = disk.bytes(expected.name);
            ASSERT_EQ(full.nbytes(), bytes.size()) << expected.name;
            EXPECT_EQ(std::memcmp(full.data_ptr(), bytes.data(), bytes.size()), 0) << expected.name;
          });
          const std::lock_guard lock(mutex);
          EXPECT_EQ(next, rank == options.root ? disk.tensors().size() : 0);
          EXPECT_EQ(r.tensors, std::ssize(disk.tensors()));
        }
      });
    }
  }
}

// The comparison sees what it is for: one weight of one rank's part that is not the file's.
TEST_F(ExportModelTest, AChangedElementShows) {
  const Checkpoint disk(checkpoint("moe", DType::kF32));
  std::mutex mutex;
  int64_t different = 0;
  on("fsdp=2,ep=2", disk.dir(), [&](const LoadedModel& m, int64_t rank, int64_t) {
    const at::NoGradGuard guard;
    if (rank == 1) m.model->find_parameter("model.layers.2.mlp.experts.down_proj")->master().view({-1})[3] += 1;
    export_stream(m, {}, {}, [&](const StoredTensor& t, const at::Tensor& full) {
      const std::lock_guard lock(mutex);
      different += std::memcmp(full.data_ptr(), disk.bytes(t.entry.name).data(), full.nbytes()) != 0;
    });
  });
  EXPECT_EQ(different, 1);
}

}  // namespace
}  // namespace weft
