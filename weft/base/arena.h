#pragma once
// Memory of one kind of a role ("actor.optimizer"): mapped pages that go back to the system and return at the same addresses,
// with their contents (kept in a file) or without. Zero where it was never written. One thread at a time.

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

class Arena {
 public:
  // Where it is: kAwake, contents and all; kStored, in a file; kDiscarded, nowhere; kEmpty: the memory is there and its contents
  // were lost: whoever makes them anew calls filled().
  enum class State { kAwake, kStored, kDiscarded, kEmpty };

  // Huge pages are for what is written whole; without, each page is taken when it is first written.
  explicit Arena(std::string name, bool huge_pages = true);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const std::string& name() const { return name_; }
  // At least `bytes`, 64-byte aligned, for as long as the arena lives. SystemError where the machine refuses, ValueError while it
  // sleeps.
  void* allocate(int64_t bytes);
  int64_t bytes() const { return bytes_; }  // of all allocations
  State state() const { return state_; }
  bool has_memory() const { return state_ == State::kAwake || state_ == State::kEmpty; }
  // What it has of the machine's memory now: its pages that were ever written, 0 while it sleeps.
  int64_t resident_bytes() const;
  // How often contents were lost: what was made of it before is old.
  int64_t losses() const { return losses_; }
  // ValueError that says what to do, unless the contents are there.
  void require() const {
    if (state_ != State::kAwake) refuse();
  }

  // The pages go; until wake() a touch of them is a SIGSEGV. discard() also loses what store() kept.
  void discard();
  // SystemError (a full disk, a directory that is not there): all is as it was then. The file has no name and goes with the
  // arena.
  void store(const std::string& directory);
  // kStored becomes kAwake, kDiscarded becomes kEmpty, all zero. SystemError where the file cannot be read.
  void wake();
  void filled();

  // Since it was made.
  struct Traffic {
    int64_t stored = 0, read = 0;  // bytes to and from the file
    double store_seconds = 0, read_seconds = 0;
  };
  const Traffic& traffic() const { return traffic_; }

 private:
  struct Mapping {
    char* data = nullptr;
    int64_t size = 0, used = 0;  // size: whole pages
  };
  [[noreturn]] void refuse() const;
  void map(int64_t bytes);
  void give_back();
  void open_file(const std::string& directory);

  std::string name_;
  bool huge_pages_;
  State state_ = State::kAwake;
  std::vector<Mapping> mappings_;
  int64_t bytes_ = 0, losses_ = 0;
  int file_ = -1;
  std::string directory_;
  Traffic traffic_;
};

}  // namespace weft
