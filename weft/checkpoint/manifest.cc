#include "weft/checkpoint/manifest.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/io/content_hash.h"
#include "weft/io/json_file.h"
#include "weft/io/mapped_file.h"
#include "weft/kernels/element_hash.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr int kManifestFormat = 2;  // 1: checkpoints without a manifest

uint64_t parse_hash(const nlohmann::json& j) {
  const std::string text = j.get<std::string>();
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw ValueError(fmt::format("hash \"{}\" is not 16 hex digits", text));
  return std::stoull(text, nullptr, 16);
}

// Below the directory, in one of its folders or itself.
bool stays_inside(const std::string& path) {
  const fs::path p(path);
  if (path.empty() || p.is_absolute() || path.find('\0') != std::string::npos) return false;
  for (const fs::path& part : p)
    if (part == ".." || part == ".") return false;
  return true;
}

const CheckpointManifest::File& entry(const CheckpointManifest& manifest, const std::string& root, const std::string& file) {
  const auto it = manifest.files.find(file);
  if (it == manifest.files.end()) throw FileError(root + "/" + kManifestName, "", "does not list " + file);
  return it->second;
}

[[noreturn]] void throw_damaged(const std::string& path, const std::string& where, uint64_t found, uint64_t expected) {
  throw FileError(path, where,
                  fmt::format("is damaged: its hash is {}, {} says {}; go on from another checkpoint", hash_text(found),
                              kManifestName, hash_text(expected)));
}

std::string_view text_of(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Length and JSON, as far as they are there.
std::string_view header_of(std::span<const std::byte> file) {
  uint64_t length = 0;
  if (file.size() >= sizeof length) std::memcpy(&length, file.data(), sizeof length);
  return text_of(
      file.first(static_cast<size_t>(std::min<uint64_t>(file.size(), std::min<uint64_t>(file.size(), length) + sizeof length))));
}

}  // namespace

void add_tensor_files(CheckpointManifest& manifest, const std::vector<TensorFile>& files, const std::vector<uint64_t>& hashes) {
  size_t i = 0;
  for (const TensorFile& f : files) {
    CheckpointManifest::File& entry = manifest.files[f.path];
    entry.size = f.plan.size;
    entry.hash = hash_bytes(f.plan.header);
    for (const TensorInfo& t : f.plan.tensors) entry.tensors[t.name] = hashes.at(i++);
  }
}

void add_other_files(CheckpointManifest& manifest, const std::string& root) {
  for (const auto& found : fs::recursive_directory_iterator(root)) {
    const std::string path = fs::relative(found.path(), root).string();
    if (!found.is_regular_file() || manifest.files.count(path)) continue;
    manifest.files[path] = {static_cast<int64_t>(found.file_size()), hash_file(found.path().string()), {}};
  }
}

std::string manifest_text(const CheckpointManifest& manifest) {
  nlohmann::json files = nlohmann::json::object();
  for (const auto& [path, f] : manifest.files) {
    nlohmann::json& j = files[path];
    j["size"] = f.size;
    j[f.tensors.empty() ? "hash" : "header_hash"] = hash_text(f.hash);
    for (const auto& [name, hash] : f.tensors) j["tensors"][name] = hash_text(hash);
  }
  return nlohmann::json{{"format", kManifestFormat}, {"files", files}}.dump(1) + "\n";
}

CheckpointManifest parse_manifest(const std::string& text, const std::string& path) {
  const nlohmann::json j = parse_json(text, path, "");
  CheckpointManifest manifest;
  try {
    if (const int format = j.at("format").get<int>(); format != kManifestFormat)
      throw FileError(path, "format", fmt::format("{} is not {}: written by another version of weft", format, kManifestFormat));
    for (const auto& [name, f] : j.at("files").items()) {
      if (!stays_inside(name)) throw FileError(path, "files", fmt::format("\"{}\" is not a path below the checkpoint", name));
      CheckpointManifest::File& entry = manifest.files[name];
      entry.size = f.at("size").get<int64_t>();
      entry.hash = parse_hash(f.at(f.contains("tensors") ? "header_hash" : "hash"));
      if (f.contains("tensors"))
        for (const auto& [tensor, hash] : f.at("tensors").items()) entry.tensors[tensor] = parse_hash(hash);
    }
  } catch (const nlohmann::json::exception& e) {
    throw FileError(path, "", e.what());
  } catch (const ValueError& e) {
    throw FileError(path, "", e.what());
  }
  return manifest;
}

void check_sizes(const CheckpointManifest& manifest, const std::string& root) {
  for (const auto& [file, f] : manifest.files) {
    std::error_code code;
    const auto size = fs::file_size(root + "/" + file, code);
    if (code)
      throw FileError(root + "/" + file, "",
                      fmt::format("{}, but {} lists it; go on from another checkpoint", code.message(), kManifestName));
    if (static_cast<int64_t>(size) != f.size)
      throw FileError(root + "/" + file, "",
                      fmt::format("has {} bytes, {} says {}; go on from another checkpoint", size, kManifestName, f.size));
  }
}

void check_bytes(const CheckpointManifest& manifest, const std::string& root, const std::string& file) {
  const CheckpointManifest::File& f = entry(manifest, root, file);
  const MappedFile mapped(root + "/" + file);
  const uint64_t found = hash_bytes(f.tensors.empty() ? text_of(mapped.bytes()) : header_of(mapped.bytes()));
  if (found != f.hash) throw_damaged(mapped.path(), f.tensors.empty() ? "" : "header", found, f.hash);
}

void check_tensor(const CheckpointManifest& manifest, const std::string& root, const std::string& file, const std::string& tensor,
                  uint64_t hash) {
  const CheckpointManifest::File& f = entry(manifest, root, file);
  const auto it = f.tensors.find(tensor);
  if (it == f.tensors.end())
    throw FileError(root + "/" + kManifestName, file, fmt::format("does not list tensor \"{}\"", tensor));
  if (it->second != hash) throw_damaged(root + "/" + file, fmt::format("tensor \"{}\"", tensor), hash, it->second);
}

int64_t check_everything(const CheckpointManifest& manifest, const std::string& root) {
  check_sizes(manifest, root);
  int64_t bytes = 0;
  for (const auto& [file, f] : manifest.files) {
    check_bytes(manifest, root, file);
    bytes += f.size;
    if (f.tensors.empty()) continue;
    const SafetensorsFile tensors(root + "/" + file);
    for (const TensorInfo& t : tensors.tensors())
      check_tensor(manifest, root, file, t.name, kernels::hash_elements(tensors.bytes(t), dtype_bytes(t.dtype), 0));
  }
  return bytes;
}

}  // namespace weft
