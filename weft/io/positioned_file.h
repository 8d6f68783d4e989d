#pragma once
// A file that several processes write together, each at its own places. One creates it at its full size; then every writer opens
// it and writes what is its own: no byte is read, so that no client of a network file system fills up a page with what others
// have written. Errors: SystemError with path, reason and what to do.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace weft {

// A new file of `size` bytes that begins with `start`; the rest is zero. Where the file system can it takes the space now, so
// that a full disk is known before anyone writes. Not synced: whoever makes it final does that. The caller removes it after an
// error.
void create_positioned_file(const std::string& path, std::string_view start, int64_t size);

// A writer's hand on it. Not shared by threads: each opens its own.
class PositionedFile {
 public:
  explicit PositionedFile(std::string path);
  ~PositionedFile();
  PositionedFile(const PositionedFile&) = delete;
  PositionedFile& operator=(const PositionedFile&) = delete;

  void write(int64_t offset, std::span<const std::byte> bytes);
  // Syncs and closes. Once.
  void commit();

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace weft
