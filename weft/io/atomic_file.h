#pragma once
// Files and directories that appear whole or not at all: written under a temporary name in the same directory, synced, renamed.
// A reader never sees half a file, and a crash or full disk leaves the old one. Errors: SystemError with the path, the reason
// and what to do; the temporary is removed then, and also when the object is destroyed without commit().

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  int64_t bytes_written() const { return bytes_written_; }
  // Flushes, syncs file and directory, renames over `path`. Once.
  void commit();

 private:
  void flush();
  [[noreturn]] void fail(const char* action, int error);

  std::string path_, temporary_;
  int fd_ = -1;
  int64_t bytes_written_ = 0;
  std::vector<std::byte> buffer_;
};

void write_file_atomically(const std::string& path, std::string_view text);
// Whole file as text. FileError when it cannot be read or is larger than max_bytes.
std::string read_text_file(const std::string& path, int64_t max_bytes = int64_t{1} << 30);

// A directory filled under `path`.tmp-<random> and renamed to `path`. An existing `path` is an error at once unless `replace`,
// which exchanges the two in one step and deletes the old one; where the file system cannot, the old one is `path`.old for a
// moment, where a crash would leave it.
class AtomicDirectory {
 public:
  explicit AtomicDirectory(std::string path, bool replace = false);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const std::string& temporary_path() const { return temporary_; }  // write here
  // Syncs every file and directory inside, then renames. Once.
  void commit();

 private:
  std::string path_, temporary_;
  bool replace_;
  bool done_ = false;
};

}  // namespace weft
