// The stream of whole tensors: on every mesh what lies on one rank, each byte once, its memory, and errors of the sink.
#include "weft/checkpoint/export_stream.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "weft/base/error.h"
#include "weft/comm/launch.h"
#include "weft/mesh/plan.h"
#include "weft/parallel/test_counting_allocator.h"

namespace weft {
namespace {

// Parameters by name: values that bf16 rounds, cut along `dim` by each axis named.
struct TestParameter {
  std::vector<int64_t> shape;
  std::vector<Cut> cuts;
};
const std::map<std::string, TestParameter> kParameters = {
    {"rows", {{37, 16}, {{"fsdp", 0}}}},
    {"columns", {{3, 5, 21}, {{"tp", 2}, {"fsdp", 1}}}},
    {"experts", {{4, 6, 11}, {{"ep", 0}, {"efsdp", 2}}}},
    {"halves", {{4, 12, 7}, {{"ep", 0}, {"efsdp", 1, 2}}}},  // each rank has two boxes of a tensor
    {"copies", {{9}, {}}},
    {"one", {{}, {}}},
};

at::Tensor whole(const std::string& name) {
  const std::vector<int64_t>& shape = kParameters.at(name).shape;
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return (at::arange(n, at::kFloat) * 0.37 + static_cast<double>(name.size())).sin().reshape(shape);
}

WeightEntry all_of(const std::string& name) {
  const std::vector<int64_t>& shape = kParameters.at(name).shape;
  return {name + ".weight", shape, name, {std::vector<int64_t>(shape.size(), 0), shape}};
}

// In an order that is not the parameters'; experts are slices, of odd sizes in bf16 before fp32.
std::vector<StoredTensor> test_tensors() {
  std::vector<StoredTensor> out = {{all_of("columns"), DType::kBF16}, {all_of("one"), DType::kF32}};
  for (int64_t e = 0; e < 4; ++e)
    for (const std::string name : {"experts", "halves"}) {
      std::vector<int64_t> size = kParameters.at(name).shape;
      size[0] = 1;
      out.push_back({{fmt::format("{}.{}", name, e), {size[1], size[2]}, name, {{e, 0, 0}, size}},
                     e % 2    ? DType::kBF16
                     : e == 2 ? DType::kF16
                              : DType::kF32});
    }
  out.push_back({all_of("rows"), DType::kF32});
  out.push_back({all_of("copies"), DType::kBF16});
  out.push_back({{"rows.again", {37, 16}, "rows", {{0, 0}, {37, 16}}}, DType::kBF16});  // a tied head
  return out;
}

Layout layout_on(const std::string& name, const RankMesh& mesh) {
  const TestParameter& p = kParameters.at(name);
  const bool expert = !p.cuts.empty() && p.cuts[0].axis == "ep";
  Layout out = Layout::replicated(p.shape, expert ? mesh.expert : mesh.dense);
  for (const Cut& cut : p.cuts) out = out.with_cut(cut);
  return out;
}

// This rank's parts.
ExportSources sources_on(const RankMesh& mesh) {
  std::map<std::string, ExportSource> parts;
  for (const auto& [name, p] : kParameters) {
    const Layout layout = layout_on(name, mesh);
    const at::Tensor full = whole(name), local = at::empty(layout.local_shape(mesh.rank()), at::kFloat);
    for (const LocalBox& b : layout.boxes(mesh.rank()))
      narrow_to(local, {b.local_offset, b.box.size}).copy_(narrow_to(full, b.box));
    parts[name] = {local, layout};
  }
  return [parts](const std::string& name) { return parts.at(name); };
}

void on_mesh(const std::string& text, const std::function<void(const RankMesh&)>& fn) {
  const ParallelDims dims = parse_parallel_dims(text);
  CommOptions comm;
  comm.threads_per_rank = 1;
  run_ranks(static_cast<int>(dims.world()), comm, [&](Communicator& world) { fn(*make_rank_mesh(dims, world)); });
}

void expect_tensor(const StoredTensor& t, const at::Tensor& full) {
  const at::Tensor expected = narrow_to(whole(t.entry.parameter), t.entry.box).to(floating_type(t.dtype)).reshape(t.entry.shape);
  EXPECT_TRUE(full.is_contiguous());
  EXPECT_TRUE(full.scalar_type() == expected.scalar_type() && at::equal(full, expected)) << t.entry.name;
}

TEST(ExportStream, EveryMeshAndRootGivesWhatOneRankHas) {
  const std::vector<StoredTensor> tensors = test_tensors();
  int64_t bytes = 0;
  for (const StoredTensor& t : tensors) bytes += t.entry.box.numel() * dtype_bytes(t.dtype);
  std::vector<std::string> order;
  const ExportSources one_rank = [](const std::string& name) { return ExportSource{whole(name), Layout()}; };
  const ExportReport alone = export_stream(tensors, one_rank, nullptr, {}, [&](const StoredTensor& t, const at::Tensor& full) {
    expect_tensor(t, full);
    order.push_back(t.entry.name);
  });
  EXPECT_EQ(alone.bytes, bytes);
  EXPECT_EQ(alone.buckets, 0);
  ASSERT_EQ(order.size(), tensors.size());
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], tensors[i].entry.name);

  int64_t split = 0;  // streams of several buckets
  for (const char* text : {"fsdp=2", "fsdp=3", "tp=2", "replicate=2", "replicate=3,fsdp=2", "fsdp=2,ep=2", "cp=2,tp=2,ep=4",
                           "fsdp=5", "fsdp=2,cp=2,tp=2,ep=2", "replicate=2,fsdp=2,tp=2,ep=4"})
    for (const int64_t watermark : {int64_t{8}, int64_t{200}, int64_t{1} << 20}) {
      if (watermark == 8 && std::string(text) != "fsdp=3") continue;  // an element a bucket takes a while
      SCOPED_TRACE(fmt::format("{} watermark {}", text, watermark));
      std::mutex mutex;
      int64_t sent = 0, received = 0, most_sent = 0;
      on_mesh(text, [&](const RankMesh& mesh) {
        ExportOptions options;
        options.root = mesh.world.size() - 1;
        options.watermark = watermark;
        std::vector<std::string> names;
        mesh.world.stats().clear();
        const ExportReport r =
            export_stream(tensors, sources_on(mesh), &mesh, options, [&](const StoredTensor& t, const at::Tensor& full) {
              expect_tensor(t, full);
              names.push_back(t.entry.name);
            });
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(names == (mesh.rank() == options.root ? order : std::vector<std::string>()));
        const CommBytes counted = mesh.world.stats().of(OpKind::kAllToAll, mesh.world.axis(), "export");
        EXPECT_EQ(counted.sent, r.sent);
        EXPECT_EQ(counted.received, r.received);
        EXPECT_EQ(r.bytes, bytes);
        sent += r.sent, most_sent = std::max(most_sent, r.sent);
        split += r.buckets > 1;
        if (mesh.rank() != options.root) {
          EXPECT_EQ(r.received, 0);
          return;
        }
        received = r.received;
        int64_t lacking = 0;
        for (const StoredTensor& t : tensors) {
          const Layout layout = layout_on(t.entry.parameter, mesh);
          lacking += t.entry.box.numel() * dtype_bytes(t.dtype);
          for (const LocalBox& b : layout.boxes(mesh.rank()))
            lacking -= intersect(b.box, t.entry.box).numel() * dtype_bytes(t.dtype);
        }
        EXPECT_EQ(r.received, lacking) << "each byte that it lacks, once";
      });
      EXPECT_EQ(sent, received);
      if (std::string(text) == "replicate=3,fsdp=2") {
        EXPECT_LT(most_sent, sent * 3 / 4) << "holders of copies share";
      }
    }
  EXPECT_GT(split, 20);
}

testing::ByteMeter& meter_of(int64_t rank) {  // outlives what it counts
  static testing::ByteMeter meters[8];
  return meters[rank];
}

// Peak bytes beyond the parts: the root's, and the most of the others.
std::pair<int64_t, int64_t> peaks(const std::string& text, int64_t watermark, bool keep) {
  const testing::CountBytes count;
  std::vector<StoredTensor> tensors;
  for (int64_t i = 0; i < 6; ++i)
    tensors.push_back({{fmt::format("t{}", i), {256, 64}, "big", {{i, 0, 0}, {1, 256, 64}}}, DType::kBF16});
  std::mutex mutex;
  std::pair<int64_t, int64_t> out;
  on_mesh(text, [&](const RankMesh& mesh) {
    testing::ByteMeter& meter = meter_of(mesh.rank());
    testing::this_ranks_meter = &meter;
    {
      const Layout layout = Layout::replicated({6, 256, 64}, mesh.dense).with_cut({"fsdp", 1});
      const at::Tensor local = at::empty(layout.local_shape(mesh.rank()), at::kFloat).fill_(1.5);
      meter.restart();
      const int64_t before = meter.live;
      std::vector<at::Tensor> kept;
      ExportOptions options;
      options.watermark = watermark;
      export_stream(
          tensors,
          [&](const std::string&) {
            return ExportSource{local, layout};
          },
          &mesh, options,
          [&](const StoredTensor&, const at::Tensor& full) {
            if (keep) kept.push_back(full);
          });
      const std::lock_guard lock(mutex);
      int64_t& most = mesh.rank() == 0 ? out.first : out.second;
      most = std::max(most, meter.peak - before);
    }
    testing::this_ranks_meter = nullptr;
  });
  return out;
}

TEST(ExportStream, HoldsOneTensorAndTheWatermark) {
  constexpr int64_t kTensor = 256 * 64 * 2;
  for (const int64_t watermark : {int64_t{4096}, int64_t{20000}}) {
    const auto [root, others] = peaks("fsdp=4", watermark, false);
    EXPECT_LE(root, kTensor + watermark);
    EXPECT_GT(root, kTensor + watermark / 2) << "counted at all";
    EXPECT_LE(others, watermark);
    EXPECT_GT(others, 0);
  }
  // What the bound is held against: two tensors at a time, or a bucket beyond the watermark, would show.
  EXPECT_GE(peaks("fsdp=4", 4096, true).first, 6 * kTensor);
  EXPECT_GT(peaks("fsdp=4", int64_t{1} << 20, false).first, kTensor + 20000);
}

// Nobody hangs, nothing is sent for nobody, and the ranks go on together.
TEST(ExportStream, AnErrorOfTheSinkIsThrownOnAllRanks) {
  const std::vector<StoredTensor> tensors = test_tensors();
  for (const char* text : {"fsdp=3", "replicate=2", "replicate=2,fsdp=2,tp=2,ep=4"})
    for (const int64_t fail_at : {int64_t{0}, int64_t{3}, std::ssize(tensors) - 1}) {
      SCOPED_TRACE(fmt::format("{} tensor {}", text, fail_at));
      std::mutex mutex;
      on_mesh(text, [&](const RankMesh& mesh) {
        ExportOptions options;
        options.root = 1;
        options.watermark = 200;
        int64_t calls = 0;
        std::string error;
        bool own = false;
        try {
          export_stream(tensors, sources_on(mesh), &mesh, options, [&](const StoredTensor&, const at::Tensor&) {
            if (calls++ == fail_at) throw ValueError("the engine is full");
          });
        } catch (const ValueError& e) {
          error = e.what(), own = true;
        } catch (const SystemError& e) {
          error = e.what();
        }
        const auto received = [&] { return mesh.world.stats().of(OpKind::kAllToAll, mesh.world.axis(), "export").received; };
        const int64_t first = received();
        export_stream(tensors, sources_on(mesh), &mesh, options, [](const StoredTensor&, const at::Tensor&) {});
        const int64_t second = received() - first;
        const std::lock_guard lock(mutex);
        EXPECT_EQ(own, mesh.rank() == 1);
        EXPECT_EQ(error, mesh.rank() == 1 ? "the engine is full" : "rank 1: the engine is full");
        EXPECT_EQ(calls, mesh.rank() == 1 ? fail_at + 1 : 0) << "no call after the error";
        if (fail_at == 0 && second > 1000) {
          EXPECT_LT(first, second / 2) << "the senders stop";
        }
      });
    }
}

TEST(ExportStream, AWatermarkWithoutRoomIsRefusedOnAllRanks) {
  on_mesh("fsdp=2", [](const RankMesh& mesh) {
    ExportOptions options;
    options.watermark = 7;
    EXPECT_THROW(export_stream(test_tensors(), sources_on(mesh), &mesh, options, [](const StoredTensor&, const at::Tensor&) {}),
                 ValueError);
  });
}

}  // namespace
}  // namespace weft
