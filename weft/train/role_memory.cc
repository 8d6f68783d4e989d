#include "weft/train/role_memory.h"

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "weft/base/block_cache.h"
#include "weft/base/clock.h"
#include "weft/base/error.h"

namespace weft {

std::shared_ptr<Arena> RoleMemory::add(const std::string& name, std::set<Phase> phases, Asleep asleep,
                                       std::function<int64_t()> bytes) {
  auto arena = std::make_shared<Arena>(name);
  Kind k{name, std::move(phases), asleep, {}, {}, {}, {}};
  k.arena = [arena] { return arena.get(); };
  k.bytes = bytes ? std::move(bytes) : [arena] { return arena->bytes(); };
  k.sleep = [this, arena, asleep] {
    if (asleep != Asleep::kKept)
      arena->discard();
    else if (arena->has_memory())
      store(*arena);
  };
  k.wake = [arena, asleep] {
    arena->wake();
    if (asleep == Asleep::kDropped) arena->filled();
  };
  add(std::move(k));
  return arena;
}

void RoleMemory::add(Kind kind) { kinds_.push_back(std::move(kind)); }

ModelArenas RoleMemory::add_model(const std::string& role, const std::set<Phase>& forward, const std::set<Phase>& update,
                                  const std::set<Phase>& other, const std::set<Phase>& state,
                                  std::function<const CausalLM*()> model) {
  const auto all = [](std::initializer_list<std::set<Phase>> parts) {
    std::set<Phase> out;
    for (const std::set<Phase>& p : parts) out.insert(p.begin(), p.end());
    return out;
  };
  ModelArenas a;
  a.parameters.weights = add(role + ".weights", all({forward, update, other, state}), Asleep::kKept);
  a.parameters.panels =
      add(role + ".panels", all({forward, update}), Asleep::kDropped, [model] { return model() ? model()->panel_bytes() : 0; });
  if (update.empty()) return a;
  // Zero between updates.
  a.parameters.gradients = add(role + ".gradients", update, Asleep::kDropped, [model] {
    int64_t sum = 0;
    if (model())
      for (const nn::Parameter* p : model()->parameters())
        if (p->trainable()) sum += p->local_compute().numel() * static_cast<int64_t>(sizeof(float));
    return sum;
  });
  a.optimizer = add(role + ".optimizer", all({update, state}), Asleep::kKept);
  return a;
}

void RoleMemory::also_in(const std::string& name, Phase phase) {
  for (Kind& k : kinds_)
    if (k.name == name) k.phases.insert(phase);
}

int64_t RoleMemory::resident() const {
  int64_t sum = 0;
  for (const Kind& k : kinds_)
    if (const Arena* a = k.arena()) sum += a->resident_bytes();
  return sum;
}

void RoleMemory::store(Arena& arena) {
  std::error_code error;
  if (std::filesystem::create_directories(store_dir_, error)) made_dir_ = true;
  if (error) throw SystemError(fmt::format("memory.store_dir = \"{}\": {}", store_dir_, error.message()));
  arena.store(store_dir_);
}

// Files there have no names: the directory is empty.
RoleMemory::~RoleMemory() {
  std::error_code none;
  if (made_dir_) std::filesystem::remove(store_dir_, none);
}

void RoleMemory::settle(int64_t ranks_of_process) {
  if (limit_ <= 0 || resident() * ranks_of_process <= limit_) return;
  for (const Kind& k : kinds_)
    if (const Arena* a = k.arena(); a && k.asleep == Asleep::kKept && a->state() == Arena::State::kAwake && a->bytes() > 0)
      k.sleep();
}

void RoleMemory::plan(const Job& job, const std::set<Phase>& phases) {
  std::vector<int64_t> mine;
  for (const Kind& k : kinds_) mine.push_back(k.arena() ? k.bytes() : 0);
  const auto all = job.gather_bytes(std::as_bytes(std::span(mine)));
  const bool one_process = !job.world() || job.world()->shares_memory();
  std::vector<MemoryNeed> needs;
  for (const Kind& k : kinds_)
    needs.push_back({k.name, std::vector<int64_t>(one_process ? 1 : all.size(), 0), k.phases, k.asleep != Asleep::kKept});
  for (size_t r = 0; r < all.size(); ++r) {
    WEFT_CHECK(all[r].size() == mine.size() * sizeof(int64_t), "rank {} has other kinds of memory", r);
    std::vector<int64_t> bytes(mine.size());
    std::memcpy(bytes.data(), all[r].data(), all[r].size());
    for (size_t i = 0; i < needs.size(); ++i) needs[i].bytes[one_process ? 0 : r] += bytes[i];
  }
  const std::vector<Phase> list(phases.begin(), phases.end());
  plan_ = plan_sleep(needs, list, limit_);
}

std::vector<std::string> RoleMemory::describe() const {
  std::vector<std::string> out;
  for (const auto& [phase, asleep] : plan_.asleep) {
    std::vector<std::string> names;
    for (size_t i = 0; i < kinds_.size(); ++i)
      if (asleep[i]) names.push_back(kinds_[i].name);
    if (!names.empty()) out.push_back(fmt::format("{}: {} asleep", phase_name(phase), fmt::join(names, ", ")));
  }
  return out;
}

void RoleMemory::measure() {
  if (!phase_) return;
  int64_t& peak = peaks_[*phase_];
  peak = std::max(peak, resident());
}

void RoleMemory::enter(const Job& job, Phase phase) {
  const auto planned = plan_.asleep.find(phase);
  WEFT_CHECK(planned != plan_.asleep.end(), "the phase {} was not planned", phase_name(phase));
  if (phase_ == phase) return;
  measure();
  if (plan_.sleeps()) {
    const double start = real_clock().now();
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (!planned->second[i]) continue;
      if (kinds_[i].asleep == Asleep::kRefit) must_refit_ = true;
      if (kinds_[i].arena()) kinds_[i].sleep();
    }
    // What libtorch's allocator keeps is of the last phase's sizes.
    trim_block_cache();
    malloc_trim(0);
    (void)job.any(false);  // ranks of one process: all sleep before one wakes
    for (size_t i = 0; i < kinds_.size(); ++i)
      if (!planned->second[i] && kinds_[i].phases.contains(phase) && kinds_[i].arena()) kinds_[i].wake();
    seconds_ += real_clock().now() - start;
  }
  phase_ = phase;
  measure();
}

void RoleMemory::report(const Job& job, MetricsRow& row) {
  measure();
  Arena::Traffic now;
  for (const Kind& k : kinds_)
    if (const Arena* a = k.arena()) {
      const Arena::Traffic& t = a->traffic();
      now.stored += t.stored, now.read += t.read;
      now.store_seconds += t.store_seconds, now.read_seconds += t.read_seconds;
    }
  std::vector<double> mine;
  for (const auto& [phase, asleep] : plan_.asleep) mine.push_back(static_cast<double>(peaks_[phase]));
  for (double v : {static_cast<double>(now.stored - reported_.stored), static_cast<double>(now.read - reported_.read),
                   now.store_seconds - reported_.store_seconds, now.read_seconds - reported_.read_seconds, seconds_})
    mine.push_back(v);
  reported_ = now;
  peaks_.clear();
  seconds_ = 0;
  const bool one_process = !job.world() || job.world()->shares_memory();
  const size_t phases = plan_.asleep.size();
  std::vector<double> of_process = mine, total = mine;
  if (job.world()) {
    std::fill(of_process.begin(), of_process.end(), 0);
    std::fill(total.begin(), total.end(), 0);
    for (const std::vector<std::byte>& bytes : job.gather_bytes(std::as_bytes(std::span(mine)))) {
      WEFT_CHECK(bytes.size() == mine.size() * sizeof(double), "memory figures of another size");
      for (size_t i = 0; i < mine.size(); ++i) {
        double v = 0;
        std::memcpy(&v, bytes.data() + i * sizeof(double), sizeof v);
        of_process[i] = one_process && i < phases ? of_process[i] + v : std::max(of_process[i], v);
        total[i] += v;
      }
    }
  }
  size_t i = 0;
  for (const auto& [phase, asleep] : plan_.asleep) {
    if (of_process[i] > 0) row.set(fmt::format("memory/peak_mb/{}", phase_name(phase)), of_process[i] / 1e6);
    ++i;
  }
  if (!plan_.sleeps()) return;
  row.set("memory/stored_mb", total[i] / 1e6);
  row.set("memory/read_mb", total[i + 1] / 1e6);
  // Of one rank's file.
  if (total[i + 2] > 0) row.set("memory/store_mb_s", total[i] / 1e6 / total[i + 2]);
  if (total[i + 3] > 0) row.set("memory/read_mb_s", total[i + 1] / 1e6 / total[i + 3]);
  row.set("timing_s/sleep_wake", of_process[i + 4]);
}

}  // namespace weft
