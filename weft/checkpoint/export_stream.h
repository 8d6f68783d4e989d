#pragma once
// A sharded model's tensors one after another, whole, on one rank: named, shaped and rounded as a checkpoint on disk has them.
// For files that one rank writes for all, and for engines that are not ours (docs/refit.md).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "weft/checkpoint/tensor_files.h"
#include "weft/mesh/layout.h"
#include "weft/parallel/rank_mesh.h"

namespace weft {

// A parameter's fp32 part on this rank, and who holds what of it. Without a mesh `local` is all of it and the layout is not read.
struct ExportSource {
  at::Tensor local;
  Layout layout;
};
using ExportSources = std::function<ExportSource(const std::string& parameter)>;
// The tensor has t.entry.shape and t.dtype, is contiguous and on the CPU; valid during the call.
using ExportSink = std::function<void(const StoredTensor& t, const at::Tensor& full)>;

struct ExportOptions {
  int root = 0;  // the rank of the mesh that gets the tensors
  // Bytes in flight on each rank: what a rank holds beside its parts, and the root besides one whole tensor. Two buckets share
  // it, so that one travels while the sink works on the other.
  int64_t watermark = int64_t{64} << 20;
};

struct ExportReport {
  int64_t tensors = 0, bytes = 0;  // handed out by the root; on every rank
  int64_t sent = 0, received = 0;  // of tensors, by this rank
  int64_t buckets = 0;
};

// Collective over the mesh (null: one rank): all ranks give the same tensors, layouts and options; only the root's sink is
// called, once a tensor, in their order. Each byte that the root lacks is sent once, in the tensor's dtype, by one rank that
// holds it; holders of copies share the work. While the sink works the others wait: comm.timeout has to be longer than one call
// of it. An error of the sink ends the stream on all ranks: on the root with that error, elsewhere as rank_agreement.h's
// together(). ValueError for a watermark that holds no element.
ExportReport export_stream(std::span<const StoredTensor> tensors, const ExportSources& sources, const RankMesh* mesh,
                           const ExportOptions& options, const ExportSink& sink);

}  // namespace weft
