#pragma once
// A regular file mapped read-only. Owns the mapping; spans from bytes() live as long as the object and survive a move of it.
// Errors: FileError when the file is absent, unreadable or not a regular file; SystemError when the kernel refuses the mapping.
// The file must not be truncated while mapped (the kernel would raise SIGBUS): everything weft writes is replaced by rename.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace weft {

class MappedFile {
 public:
  // Hints for the kernel; they never change what is read.
  enum class Advice { kSequential, kRandom, kWillNeed, kDontNeed };

  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return static_cast<int64_t>(size_); }  // bytes
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  // Advises bytes [begin, end); the range is widened to pages (kDontNeed: narrowed, so that neighbours stay).
  void advise(Advice advice, int64_t begin, int64_t end) const;

 private:
  std::string path_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace weft
