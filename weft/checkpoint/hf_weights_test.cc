// Weights between disk and masters: dtypes, shards, and checkpoints that do not fit the model.

#include "weft/checkpoint/hf_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "weft/base/error.h"
#include "weft/io/test_files.h"

namespace weft {
namespace {

// Two experts stacked in `experts` [2, 4, 3] (gate rows first), a table and a vector.
const std::vector<WeightEntry> kEntries = {
    {"embed.weight", {5, 3}, "embed", {{0, 0}, {5, 3}}},         {"experts.0.gate", {2, 3}, "experts", {{0, 0, 0}, {1, 2, 3}}},
    {"experts.0.up", {2, 3}, "experts", {{0, 2, 0}, {1, 2, 3}}}, {"experts.1.gate", {2, 3}, "experts", {{1, 0, 0}, {1, 2, 3}}},
    {"experts.1.up", {2, 3}, "experts", {{1, 2, 0}, {1, 2, 3}}}, {"norm", {3}, "norm", {{0}, {3}}},
};
const WeightEntry kHead = {"head.weight", {5, 3}, "embed", {{0, 0}, {5, 3}}};

struct Masters {
  std::map<std::string, at::Tensor> tensors = {
      {"embed", at::full({5, 3}, NAN)}, {"experts", at::full({2, 4, 3}, NAN)}, {"norm", at::full({3}, NAN)}};
  PartByName get() {
    return [this](const std::string& name) { return whole_parameter(tensors.at(name)); };
  }
};

// Values of element i: exact in every dtype here.
at::Tensor some(const std::vector<int64_t>& shape, int64_t start) {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return (at::arange(start, start + n, at::kFloat) / 4).reshape(shape);
}

at::ScalarType scalar_type(DType d) {
  switch (d) {
    case DType::kBF16: return at::kBFloat16;
    case DType::kF16: return at::kHalf;
    case DType::kI64: return at::kLong;
    case DType::kI32: return at::kInt;
    default: return at::kFloat;
  }
}

// A checkpoint as a list of tensors that tests change before it is written.
struct Disk {
  struct Item {
    std::string name;
    DType dtype;
    at::Tensor value;
  };
  std::vector<Item> items;
  TemporaryDirectory dir;

  explicit Disk(DType dtype = DType::kF32) {
    int64_t start = 1;
    for (const WeightEntry& e : kEntries) {
      items.push_back({e.name, dtype, some(e.shape, start)});
      start += 16;
    }
  }
  Item& at(const std::string& name) {
    for (Item& i : items)
      if (i.name == name) return i;
    throw std::out_of_range(name);
  }
  Checkpoint write() {
    std::vector<TensorToSave> tensors;
    std::vector<at::Tensor> kept;
    for (const Item& i : items) {
      kept.push_back(i.value.to(scalar_type(i.dtype)).contiguous());
      tensors.push_back(TensorToSave::from_bytes(i.name, i.dtype, i.value.sizes().vec(),
                                                 {static_cast<const std::byte*>(kept.back().data_ptr()), kept.back().nbytes()}));
    }
    save_sharded_safetensors(dir.path(), tensors, 1 << 20);
    return Checkpoint(dir.path());
  }
};

std::string refusal(Disk& disk, const std::optional<WeightEntry>& head = {}) {
  const Checkpoint c = disk.write();
  Masters m;
  return message_of<FileError>([&] { load_hf_weights(c, kEntries, head, m.get()); });
}

TEST(HfWeights, LoadsEachDtypeIntoTheStackedMasters) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Disk disk(dtype);
    Masters m;
    const DiskManifest manifest = load_hf_weights(disk.write(), kEntries, {}, m.get());
    ASSERT_EQ(manifest.size(), kEntries.size());
    for (const DiskTensor& t : manifest) EXPECT_EQ(t.dtype, dtype);
    EXPECT_TRUE(at::equal(m.tensors["embed"], disk.at("embed.weight").value));
    EXPECT_TRUE(at::equal(m.tensors["norm"], disk.at("norm").value));
    const at::Tensor experts = at::stack({at::cat({disk.at("experts.0.gate").value, disk.at("experts.0.up").value}),
                                          at::cat({disk.at("experts.1.gate").value, disk.at("experts.1.up").value})});
    EXPECT_TRUE(at::equal(m.tensors["experts"], experts));
  }
}

std::vector<std::byte> copy(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

// Whatever the cut: a rank's part is what it is of the whole.
TEST(HfWeights, ARankLoadsItsBoxes) {
  Disk disk(DType::kBF16);
  const Checkpoint checkpoint = disk.write();
  Masters all;
  load_hf_weights(checkpoint, kEntries, {}, all.get());
  for (int64_t ranks = 1; ranks <= 4; ++ranks)
    for (int64_t dim = 0; dim < 3; ++dim)
      for (const int64_t parts : {1, 2}) {
        const Layout layout = Layout::replicated({2, 4, 3}, DeviceMesh({"fsdp"}, {ranks}));
        if (layout.shape()[static_cast<size_t>(dim)] % parts != 0) continue;
        const Layout cut = layout.with_cut({"fsdp", dim, parts});
        for (int64_t rank = 0; rank < ranks; ++rank) {
          at::Tensor local = at::full(cut.local_shape(rank), NAN);
          Masters m;
          load_hf_weights(checkpoint, kEntries, {}, [&](const std::string& name) {
            return name == "experts" ? ParameterPart{local, cut.boxes(rank)} : whole_parameter(m.tensors.at(name));
          });
          for (const LocalBox& b : cut.boxes(rank))
            EXPECT_TRUE(at::equal(narrow_to(local, {b.local_offset, b.box.size}), narrow_to(all.tensors["experts"], b.box)))
                << cut.to_string();
          EXPECT_FALSE(local.isnan().any().item<bool>());
        }
      }
}

TEST(HfWeights, SavesTheSameBytesInOneFileOrInShards) {
  Disk disk(DType::kBF16);
  disk.at("norm").dtype = DType::kF32;  // a mixture stays one
  disk.at("experts.1.up").dtype = DType::kF16;
  const Checkpoint before = disk.write();
  Masters m;
  const DiskManifest manifest = load_hf_weights(before, kEntries, {}, m.get());
  for (const int64_t shard : {int64_t{1} << 30, int64_t{40}, int64_t{1}}) {
    TemporaryDirectory out;
    save_hf_weights(out.path(), manifest, kEntries, {}, m.get(), shard);
    const Checkpoint after(out.path());
    EXPECT_EQ(after.files().size() > 1, shard <= 40) << shard;
    ASSERT_EQ(after.tensors().size(), before.tensors().size());
    for (const TensorInfo& t : before.tensors()) {
      EXPECT_EQ(after.tensor(t.name).dtype, t.dtype) << t.name;
      EXPECT_EQ(after.tensor(t.name).shape, t.shape) << t.name;
      EXPECT_EQ(copy(after.bytes(t.name)), copy(before.bytes(t.name))) << t.name;
    }
    Masters again;
    load_hf_weights(after, kEntries, {}, again.get());
    for (const auto& [name, value] : m.tensors) EXPECT_TRUE(at::equal(value, again.tensors[name])) << name;
  }
}

TEST(HfWeights, SavingRoundsToTheManifestsDtype) {
  Masters m;
  for (auto& [name, t] : m.tensors) t.fill_(1.0f + 0x1p-12f);
  TemporaryDirectory out;
  save_hf_weights(out.path(), fresh_manifest(kEntries, DType::kBF16), kEntries, {}, m.get());
  Masters again;
  load_hf_weights(Checkpoint(out.path()), kEntries, {}, again.get());
  for (const auto& [name, t] : again.tensors) EXPECT_TRUE(at::equal(t, at::ones_like(t))) << name;
}

TEST(HfWeights, NamesWhatIsMissing) {
  Disk disk;
  std::erase_if(disk.items, [](const auto& i) { return i.name == "norm" || i.name == "experts.1.up"; });
  const std::string message = refusal(disk);
  EXPECT_NE(message.find("norm"), std::string::npos) << message;
  EXPECT_NE(message.find("experts.1.up"), std::string::npos) << message;
  EXPECT_EQ(message.find("embed"), std::string::npos) << message;
}

TEST(HfWeights, NamesWhatIsTooMuch) {
  Disk disk;
  for (int i = 0; i < 14; ++i) disk.items.push_back({fmt::format("extra.{}", i), DType::kF32, some({2}, 0)});
  const std::string message = refusal(disk);
  EXPECT_NE(message.find("extra.0"), std::string::npos) << message;
  EXPECT_NE(message.find("and 4 more"), std::string::npos) << message;
}

TEST(HfWeights, NamesShapesAndDtypesThatDoNotFit) {
  Disk shape;
  shape.at("experts.1.gate").value = some({3, 2}, 1);  // as many elements
  const std::string a = refusal(shape);
  EXPECT_NE(a.find("experts.1.gate"), std::string::npos) << a;
  EXPECT_NE(a.find("[3, 2]"), std::string::npos) << a;
  EXPECT_NE(a.find("[2, 3]"), std::string::npos) << a;
  for (const DType d : {DType::kI64, DType::kI32}) {
    Disk integer;
    integer.at("norm").dtype = d;
    const std::string b = refusal(integer);
    EXPECT_NE(b.find("norm"), std::string::npos) << b;
    EXPECT_NE(b.find("dtype"), std::string::npos) << b;
  }
}

TEST(HfWeights, NamesEveryFaultAtOnce) {
  Disk disk;
  disk.at("experts.1.gate").value = some({3, 2}, 1);
  disk.at("norm").name = "norms";
  disk.at("embed.weight").dtype = DType::kI32;
  const std::string message = refusal(disk);
  for (const char* part : {"missing: norm;", "account for: norms;", "experts.1.gate has shape [3, 2]", "embed.weight has dtype"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " not in " << message;
}

TEST(HfWeights, ARedundantTiedHeadMustEqualTheTable) {
  Disk equal;
  equal.items.push_back({"head.weight", DType::kF32, equal.at("embed.weight").value});
  Masters m;
  const DiskManifest manifest = load_hf_weights(equal.write(), kEntries, kHead, m.get());
  EXPECT_EQ(manifest.size(), kEntries.size() + 1);
  TemporaryDirectory out;  // and it is written back
  save_hf_weights(out.path(), manifest, kEntries, kHead, m.get());
  EXPECT_TRUE(Checkpoint(out.path()).contains("head.weight"));

  Disk unequal;
  unequal.items.push_back({"head.weight", DType::kF32, some({5, 3}, 2)});
  EXPECT_NE(refusal(unequal, kHead).find("tie_word_embeddings"), std::string::npos);
  Disk misshapen;
  misshapen.items.push_back({"head.weight", DType::kF32, some({3, 5}, 1)});
  EXPECT_NE(refusal(misshapen, kHead).find("[3, 5]"), std::string::npos);
  Disk untied;  // the same head is too much for a model that has another
  untied.items.push_back({"head.weight", DType::kF32, untied.at("embed.weight").value});
  EXPECT_NE(refusal(untied).find("head.weight"), std::string::npos);
}

TEST(HfWeights, AManifestOfAnotherModelIsOurBug) {
  Masters m;
  TemporaryDirectory out;
  EXPECT_THROW(save_hf_weights(out.path(), {{"unknown", DType::kF32}}, kEntries, {}, m.get()), InternalError);
}

}  // namespace
}  // namespace weft
