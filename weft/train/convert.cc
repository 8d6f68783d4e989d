#include "weft/train/convert.h"

#include <filesystem>

#include "weft/base/error.h"
#include "weft/base/signals.h"
#include "weft/checkpoint/export_stream.h"
#include "weft/checkpoint/manifest.h"
#include "weft/checkpoint/rank_agreement.h"
#include "weft/io/atomic_file.h"
#include "weft/io/hub_cache.h"
#include "weft/train/checkpoint_dir.h"
#include "weft/train/loaded_model.h"
#include "weft/train/train_state.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

bool is_run_checkpoint(const fs::path& dir) { return fs::is_directory(dir / "state") || fs::exists(dir / kManifestName); }

// A critic's or a reward model's has a score head, which its config says.
ModelHead head_of(const std::string& dir, const std::vector<Family>& extra) {
  return configure_model(HfConfig::load(dir), extra).score_head ? ModelHead::kScore : ModelHead::kVocabulary;
}

// Whether `inner` is `outer` or below it.
bool lies_in(const fs::path& inner, const fs::path& outer) {
  const fs::path below = inner.lexically_relative(outer);
  return !below.empty() && *below.begin() != "..";
}

// Links resolved; "a/" and "a" are one.
fs::path real_path(const std::string& path) {
  fs::path p = fs::weakly_canonical(fs::absolute(path));
  return p.has_filename() ? p : p.parent_path();
}

void throw_if_stopped(const std::string& out) {
  if (stop_requested()) throw StoppedError(fmt::format("stopped by {}: {} was not written", stop_signal_name(), out));
}

}  // namespace

ConvertSource find_convert_source(const std::string& path) {
  if (path.empty()) throw UsageError("the checkpoint to convert is empty: give a run's directory or a model's");
  fs::path at(path);
  if (at.filename() == kLatest && fs::is_regular_file(at)) at = at.has_parent_path() ? at.parent_path() : fs::path(".");
  if (fs::is_directory(at) && !fs::exists(at / "config.json") && !is_run_checkpoint(at)) {
    const bool run = fs::is_directory(at / "checkpoints");
    if (run) at /= "checkpoints";
    if (const auto newest = newest_checkpoint(at.string()))
      at /= *newest;
    else if (run)
      throw FileError(at.string(), "", "holds no complete checkpoint (global_step_N)");
    else
      throw FileError(at.string(), "",
                      "is no run's directory (checkpoints/), no checkpoint of one (state/) and no Hugging Face checkpoint "
                      "(config.json)");
  }
  if (!is_run_checkpoint(at)) return {resolve_model_path(at.string()), ""};
  if (!is_complete_checkpoint(at.string()))
    throw FileError(at.string(), "", "is not a complete checkpoint: it has no manifest.json");
  return {(at / "huggingface").string(), at.string()};
}

void check_convert_output(const ConvertSource& source, const std::string& out, bool overwrite) {
  if (out.empty()) throw UsageError("the output directory is empty: give a path");
  const fs::path to = real_path(out), from = real_path(source.checkpoint.empty() ? source.model : source.checkpoint);
  if (lies_in(to, from) || lies_in(from, to))
    throw UsageError(fmt::format("the output {} and {}, which is read, lie in each other: choose another output directory", out,
                                 from.string()));
  if (fs::exists(to.parent_path() / kManifestName))
    throw UsageError(fmt::format("the output {} lies in a run's checkpoint, {}: choose another output directory", out,
                                 to.parent_path().string()));
  if (!fs::exists(to)) return;
  if (!overwrite) throw UsageError(fmt::format("{}: already exists; choose another output directory, or --overwrite", out));
  if (!fs::is_directory(to) || (!fs::is_empty(to) && !fs::exists(to / "config.json")))
    throw UsageError(fmt::format("--overwrite: {} is no model's directory (it has no config.json): remove it yourself", out));
}

ConvertReport convert_checkpoint(const ConvertSource& source, const std::string& out, const ConvertOptions& options,
                                 const std::vector<Family>& extra_families, std::shared_ptr<const RankMesh> mesh) {
  const ModelHead head = head_of(source.model, extra_families);
  const bool state = !source.checkpoint.empty();
  LoadedModel m = state ? open_model(source.model, DType::kF32, "cpu", extra_families, mesh, {}, head)
                        : load_model(source.model, DType::kF32, "cpu", extra_families, mesh, {}, head);
  const Communicator* world = m.mesh ? &m.mesh->world : nullptr;
  const bool main = !world || world->rank() == 0;
  ConvertReport report;
  if (state) report.step = load_masters(source.checkpoint, m);
  if (options.dtype) {
    m.hf.raw_json = m.hf.json_with_dtype(*options.dtype);
    for (DiskTensor& t : m.manifest) t.dtype = *options.dtype;
  }

  std::string index;
  const std::vector<TensorFile> files = plan_hf_weights("", m.manifest, m.entries, m.tied_head, &index, options.max_shard_bytes);
  const std::vector<StoredTensor> tensors = tensors_in(files);
  std::optional<AtomicDirectory> directory;  // rank 0's
  together(world, [&] {
    if (!main) return;
    check_convert_output(source, out, options.overwrite);
    directory.emplace(real_path(out).string(), options.overwrite);
    save_model_files(m, directory->temporary_path());
    if (!index.empty()) write_file_atomically(directory->temporary_path() + "/" + kSafetensorsIndex, index);
    create_tensor_files(directory->temporary_path(), files);
  });
  std::optional<PartWriter> writer;
  if (main) writer.emplace(directory->temporary_path(), files);
  int64_t done = 0;
  try {
    const ExportReport stream =
        export_stream(tensors, export_sources(m), m.mesh.get(), {}, [&](const StoredTensor& t, const at::Tensor& full) {
          throw_if_stopped(out);
          writer->write(whole_tensor(t.entry, full));
          if (options.progress) options.progress(++done, std::ssize(tensors));
        });
    report.tensors = stream.tensors, report.bytes = stream.bytes, report.files = std::ssize(files);
    together(world, [&] {
      if (!main) return;
      writer->finish();
      throw_if_stopped(out);
      directory->commit();
    });
  } catch (const SystemError&) {  // how rank 0's stop reaches the others
    throw_if_stopped(out);
    throw;
  }
  return report;
}

}  // namespace weft
