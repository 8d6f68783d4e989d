#pragma once
// Every operation on every dtype with even, uneven and zero sizes, each result compared with plain loops. For tests: threads and MPI
// run the same cases and have to come to the same hash of all results.

#include <cstring>
#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/comm/communicator.h"

namespace weft::comm_cases {

using Bytes = std::vector<std::byte>;
using Counts = std::vector<int64_t>;

inline const std::vector<DType> kDTypes = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64,
                                           DType::kI32, DType::kI16, DType::kI8,  DType::kU8,   DType::kBool};
inline constexpr std::byte kUntouched{0xa5};

inline Bytes blank(int64_t count, DType dtype) { return Bytes(static_cast<size_t>(count * dtype_bytes(dtype)), kUntouched); }

template <class T>
void put(Bytes* to, int64_t i, T value) { std::memcpy(to->data() + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T)); }
template <class T>
T get(const Bytes& from, int64_t i) {
  T value;
  std::memcpy(&value, from.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return value;
}
inline _Float16 half(uint16_t bits) { return std::bit_cast<_Float16>(bits); }

// Element i of what `rank` contributes; floats fill their mantissa, so that the order of a sum shows.
inline void put_value(Bytes* to, int64_t at, DType dtype, int rank, int64_t i) {
  const uint64_t bits = hash_combine(static_cast<uint64_t>(rank), static_cast<uint64_t>(i));
  const double x = static_cast<double>(static_cast<int64_t>(bits)) * 0x1p-62;  // in [-2, 2)
  switch (dtype) {
    case DType::kF64: return put(to, at, x);
    case DType::kF32: return put(to, at, static_cast<float>(x));
    case DType::kF16: return put(to, at, static_cast<_Float16>(static_cast<float>(x)));
    case DType::kBF16: return put(to, at, float_to_bf16(static_cast<float>(x)));
    case DType::kI64: return put(to, at, static_cast<int64_t>(bits));
    case DType::kI32: return put(to, at, static_cast<int32_t>(bits));
    case DType::kI16: return put(to, at, static_cast<int16_t>(bits));
    case DType::kI8: return put(to, at, static_cast<int8_t>(bits));
    case DType::kU8: return put(to, at, static_cast<uint8_t>(bits));
    case DType::kBool: return put(to, at, static_cast<uint8_t>(bits & 1));
  }
}
// `count` values of `rank`, starting at its element `first`.
inline Bytes values(DType dtype, int rank, int64_t count, int64_t first = 0) {
  Bytes out = blank(count, dtype);
  for (int64_t i = 0; i < count; ++i) put_value(&out, i, dtype, rank, first + i);
  return out;
}

// The order of every reduction, written a second time: split at the largest power of two below n.
template <class T, class Join>
T tree(const std::vector<T>& x, size_t low, size_t high, const Join& join) {
  if (high - low == 1) return x[low];
  size_t left = 1;
  while (left * 2 < high - low) left *= 2;
  return join(tree(x, low, low + left, join), tree(x, low + left, high, join));
}
template <class T>
T joined(const std::vector<T>& x, ReduceOp op) {
  const T all = tree(x, 0, x.size(), [op](T a, T b) -> T {
    if (op == ReduceOp::kMin) return a < b ? a : b;
    if (op == ReduceOp::kMax) return a > b ? a : b;
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    else return a + b;
  });
  return op == ReduceOp::kAvg ? static_cast<T>(all / static_cast<T>(x.size())) : all;
}
template <class T, class W>
Bytes joined_parts(const std::vector<Bytes>& parts, int64_t count, ReduceOp op, const std::function<W(T)>& widen, const std::function<T(W)>& narrow) {
  Bytes out(static_cast<size_t>(count) * sizeof(T));
  std::vector<W> x(parts.size());
  for (int64_t i = 0; i < count; ++i) {
    for (size_t r = 0; r < parts.size(); ++r) x[r] = widen(get<T>(parts[r], i));
    put(&out, i, narrow(joined(x, op)));
  }
  return out;
}
template <class T>
Bytes joined_plain(const std::vector<Bytes>& parts, int64_t count, ReduceOp op) {
  return joined_parts<T, T>(parts, count, op, [](T x) { return x; }, [](T x) { return x; });
}
inline Bytes reduced(const std::vector<Bytes>& parts, int64_t count, DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kF64: return joined_plain<double>(parts, count, op);
    case DType::kF32: return joined_plain<float>(parts, count, op);
    case DType::kF16:
      return joined_parts<uint16_t, float>(parts, count, op, [](uint16_t x) { return static_cast<float>(half(x)); },
                                           [](float x) { return std::bit_cast<uint16_t>(static_cast<_Float16>(x)); });
    case DType::kBF16: return joined_parts<bf16, float>(parts, count, op, bf16_to_float, float_to_bf16);
    case DType::kI64: return joined_plain<int64_t>(parts, count, op);
    case DType::kI32: return joined_plain<int32_t>(parts, count, op);
    case DType::kI16: return joined_plain<int16_t>(parts, count, op);
    case DType::kI8: return joined_plain<int8_t>(parts, count, op);
    default: return joined_plain<uint8_t>(parts, count, op);
  }
}

// Collects results of one rank.
class Checker {
 public:
  void expect(const Bytes& got, const Bytes& wanted, const std::string& what) {
    if (got != wanted) throw std::runtime_error("wrong result: " + what);
    for (const std::byte b : got) hash_ = (hash_ ^ static_cast<uint64_t>(b)) * 0x100000001b3u;
    ++results_;
  }
  uint64_t hash() const { return hash_; }
  int64_t results() const { return results_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
  int64_t results_ = 0;
};

inline std::vector<Counts> count_patterns(int n) {
  std::vector<Counts> out(4);
  for (int r = 0; r < n; ++r) {
    out[0].push_back(5);
    out[1].push_back(3 * r + 1);
    out[2].push_back(r % 2 == 0 ? 0 : 700 + r);
    out[3].push_back(0);
  }
  return out;
}
inline int64_t total(const Counts& counts) {
  int64_t sum = 0;
  for (const int64_t c : counts) sum += c;
  return sum;
}
inline void append(Bytes* to, const Bytes& more) { to->insert(to->end(), more.begin(), more.end()); }

// In the cases below every rank knows what the others contribute: values(dtype, rank, ...).
inline void gathers(Communicator& comm, DType dtype, const Counts& counts, Checker* checker) {
  const int me = comm.rank(), root = comm.size() / 2;
  const int64_t own = counts[static_cast<size_t>(me)], all = total(counts);
  const Bytes mine = values(dtype, me, own);
  Bytes wanted;
  int64_t before = 0;
  for (int r = 0; r < comm.size(); ++r) {
    append(&wanted, values(dtype, r, counts[static_cast<size_t>(r)]));
    if (r < me) before += counts[static_cast<size_t>(r)];
  }
  const size_t offset = static_cast<size_t>(before * dtype_bytes(dtype));
  Bytes got = blank(all, dtype);
  comm.all_gather(mine.data(), got.data(), counts, dtype).wait();
  checker->expect(got, wanted, "all_gather");

  Bytes in_place = blank(all, dtype);
  std::copy(mine.begin(), mine.end(), in_place.begin() + static_cast<int64_t>(offset));
  comm.all_gather(in_place.data() + offset, in_place.data(), counts, dtype).wait();
  checker->expect(in_place, wanted, "all_gather in place");

  got = blank(all, dtype);
  comm.gather(mine.data(), got.data(), counts, dtype, root).wait();
  checker->expect(got, me == root ? wanted : blank(all, dtype), "gather");

  Bytes part = blank(own, dtype);
  comm.scatter(me == root ? wanted.data() : nullptr, part.data(), counts, dtype, root).wait();
  checker->expect(part, mine, "scatter");

  SharedBuffer buffer = comm.shared_buffer(all * dtype_bytes(dtype));
  for (int repeat = 0; repeat < 2; ++repeat) {
    comm.all_gather_shared(mine.data(), counts, dtype, buffer).wait();
    checker->expect(Bytes(buffer.data(), buffer.data() + buffer.bytes()), wanted, "all_gather_shared");
    buffer.release();
  }
}

inline void reductions(Communicator& comm, DType dtype, const Counts& counts, ReduceOp op, Checker* checker) {
  const int me = comm.rank();
  const int64_t own = counts[static_cast<size_t>(me)], all = total(counts);
  const std::string name = fmt::format("{} of {}", to_string(op), dtype_name(dtype));
  std::vector<Bytes> parts;
  for (int r = 0; r < comm.size(); ++r) parts.push_back(values(dtype, r, all));
  const Bytes whole = reduced(parts, all, dtype, op);
  int64_t before = 0;
  for (int r = 0; r < me; ++r) before += counts[static_cast<size_t>(r)];
  const auto begin = whole.begin() + before * dtype_bytes(dtype);
  const Bytes wanted(begin, begin + own * dtype_bytes(dtype));

  Bytes input = parts[static_cast<size_t>(me)], got = blank(own, dtype);
  comm.reduce_scatter(input.data(), got.data(), counts, dtype, op).wait();
  checker->expect(got, wanted, "reduce_scatter, " + name);
  std::byte* place = input.data() + before * dtype_bytes(dtype);
  comm.reduce_scatter(input.data(), place, counts, dtype, op).wait();
  checker->expect(Bytes(place, place + own * dtype_bytes(dtype)), wanted, "reduce_scatter in place, " + name);

  input = parts[static_cast<size_t>(me)];
  got = blank(all, dtype);
  comm.all_reduce(input.data(), got.data(), all, dtype, op).wait();
  checker->expect(got, whole, "all_reduce, " + name);
  checker->expect(input, parts[static_cast<size_t>(me)], "all_reduce leaves its input");
  comm.all_reduce(input.data(), input.data(), all, dtype, op).wait();
  checker->expect(input, whole, "all_reduce in place, " + name);
}

inline void exchanges(Communicator& comm, DType dtype, int pattern, Checker* checker) {
  const int me = comm.rank(), n = comm.size();
  // What rank a sends to rank b.
  const auto amount = [&](int a, int b) -> int64_t {
    return pattern == 0 ? 4 : pattern == 1 ? 2 * a + b + 1 : pattern == 2 ? ((a + b) % 2 == 0 ? 0 : 300 * (a + 1)) : 0;
  };
  Counts to, from;
  Bytes out, wanted;
  for (int r = 0; r < n; ++r) {
    to.push_back(amount(me, r));
    from.push_back(amount(r, me));
    append(&out, values(dtype, me, amount(me, r), 1000 * r));
    append(&wanted, values(dtype, r, amount(r, me), 1000 * me));
  }
  Bytes got = blank(total(from), dtype);
  comm.all_to_all(out.data(), to, got.data(), from, dtype).wait();
  checker->expect(got, wanted, "all_to_all");

  // The same in two pieces, out of and into every second row.
  const int64_t width = dtype_bytes(dtype);
  const auto spread = [&](Bytes* memory, const Counts& counts) {
    std::vector<std::vector<MemoryBox>> boxes(static_cast<size_t>(n));
    *memory = blank(2 * total(counts), dtype);
    int64_t at = 0;
    for (size_t r = 0; r < boxes.size(); ++r) {
      const int64_t half = counts[r] / 2;
      for (const auto& [begin, rows] : {std::pair<int64_t, int64_t>{0, half}, {half, counts[r] - half}})
        boxes[r].push_back({memory->data() + (at + begin) * 2 * width, {rows, width}, {2 * width, 1}});
      at += counts[r];
    }
    return boxes;
  };
  Bytes from_memory, to_memory, unpacked = blank(total(from), dtype);
  const auto sends = spread(&from_memory, to), receives = spread(&to_memory, from);
  for (int64_t i = 0; i < total(to); ++i)
    std::copy_n(out.begin() + i * width, width, from_memory.begin() + 2 * i * width);
  comm.exchange(sends, receives, "boxes").wait();
  for (int64_t i = 0; i < total(from); ++i)
    std::copy_n(to_memory.begin() + 2 * i * width, width, unpacked.begin() + i * width);
  checker->expect(unpacked, wanted, "exchange");
  const Bytes gap = blank(1, dtype);
  for (int64_t i = 0; i < total(from); ++i)
    checker->expect(Bytes(to_memory.begin() + (2 * i + 1) * width, to_memory.begin() + (2 * i + 2) * width), gap, "between");

  const int64_t count = pattern == 3 ? 0 : 7 + 500 * pattern;
  for (const int root : {0, n - 1}) {
    Bytes data = me == root ? values(dtype, root, count) : blank(count, dtype);
    comm.broadcast(data.data(), count, dtype, root).wait();
    checker->expect(data, values(dtype, root, count), "broadcast");
  }
  // Around a ring, two messages under way each, waited for out of order.
  if (n > 1) {
    const int next = (me + 1) % n, last = (me + n - 1) % n;
    const Bytes first = values(dtype, me, count), second = values(dtype, me, count, 50);
    Bytes a = blank(count, dtype), b = blank(count, dtype);
    Work receive_a = comm.recv(a.data(), count, dtype, last), receive_b = comm.recv(b.data(), count, dtype, last);
    Work send_a = comm.send(first.data(), count, dtype, next), send_b = comm.send(second.data(), count, dtype, next);
    receive_b.wait();
    send_b.wait();
    receive_a.wait();
    send_a.wait();
    checker->expect(a, values(dtype, last, count), "recv");
    checker->expect(b, values(dtype, last, count, 50), "recv of the second");
  }
  comm.barrier().wait();
}

// Boxes above and below what travels alone and what is streamed, in one run at both ends, at one of them or at none, between others
// that are short or empty; bytes around the boxes stay. All of them go to the next rank, and a few to the others.
inline void large_exchanges(Communicator& comm, Checker* checker) {
  struct Shape {
    int64_t rows, row;     // bytes
    int64_t gaps[2];       // between rows: at the sender, at the receiver
  };
  const Shape shapes[] = {{3, 5, {2, 0}}, {70, 1001, {0, 0}}, {1, 0, {0, 0}},    {90, 1500, {24, 0}},
                          {2, 64, {0, 1}}, {130, 513, {0, 7}}, {180, 4096, {8, 16}}, {1, 65536, {0, 0}}};
  const int me = comm.rank(), n = comm.size();
  const auto count = [&](int from, int to) { return to == (from + 1) % n ? std::size(shapes) : 3; };
  // The memory of one side: every box to or from every rank, each with some bytes behind it.
  const auto boxes_in = [&](Bytes* memory, size_t side) {
    std::vector<std::vector<MemoryBox>> boxes(static_cast<size_t>(n));
    int64_t at = 0;
    for (const bool placed : {false, true}) {  // once to count
      if (placed) memory->assign(static_cast<size_t>(std::exchange(at, 0)), kUntouched);
      for (int r = 0; r < n; ++r)
        for (size_t i = 0; i < (side == 0 ? count(me, r) : count(r, me)); ++i) {
          const Shape& s = shapes[i];
          if (placed) boxes[static_cast<size_t>(r)].push_back({memory->data() + at, {s.rows, s.row}, {s.row + s.gaps[side], 1}});
          at += s.rows * (s.row + s.gaps[side]) + 3;
        }
    }
    return boxes;
  };
  const auto fill = [](const MemoryBox& box, int from, int to, size_t which) {
    for (int64_t r = 0, i = 0; r < box.sizes[0]; ++r)
      for (int64_t b = 0; b < box.sizes[1]; ++b, ++i)
        box.data[r * box.strides[0] + b] = static_cast<std::byte>(from * 31 + to * 17 + static_cast<int>(which) * 5 + i % 251);
  };
  Bytes out, in, wanted;
  const auto sends = boxes_in(&out, 0), receives = boxes_in(&in, 1), expected = boxes_in(&wanted, 1);
  for (int r = 0; r < n; ++r) {
    for (size_t i = 0; i < count(me, r); ++i) fill(sends[static_cast<size_t>(r)][i], me, r, i);
    for (size_t i = 0; i < count(r, me); ++i) fill(expected[static_cast<size_t>(r)][i], r, me, i);
  }
  comm.exchange(sends, receives, "boxes").wait();
  checker->expect(in, wanted, "exchange of large boxes");
  // In memory of the caller's.
  in.assign(in.size(), kUntouched);
  int64_t packed = 0;
  for (int r = 0; r < n; ++r)
    if (r != me)
      packed += Communicator::packed_bytes(sends[static_cast<size_t>(r)]) + Communicator::packed_bytes(receives[static_cast<size_t>(r)]);
  Bytes staging(static_cast<size_t>(packed + 1), kUntouched);
  comm.exchange(sends, receives, "boxes", staging.data()).wait();
  checker->expect(in, wanted, "exchange of large boxes in staging");
  if (staging.back() != kUntouched) throw std::runtime_error("an exchange wrote beyond its staging");
}

// An all-reduce of many elements in two steps, also where they do not divide.
inline void large_reductions(Communicator& comm, Checker* checker) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t count : {9001, 100000}) reductions(comm, dtype, Counts(static_cast<size_t>(comm.size()), count / comm.size()), ReduceOp::kSum, checker);
}

inline bool reducible(DType dtype, ReduceOp op) {
  try {
    check_reducible(dtype, op);
    return true;
  } catch (const ValueError&) {
    return false;
  }
}

inline void everything(Communicator& comm, Checker* checker) {
  const auto patterns = count_patterns(comm.size());
  for (const DType dtype : kDTypes) {
    for (int p = 0; p < 4; ++p) {
      gathers(comm, dtype, patterns[static_cast<size_t>(p)], checker);
      exchanges(comm, dtype, p, checker);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg})
        if (reducible(dtype, op)) reductions(comm, dtype, patterns[static_cast<size_t>(p)], op, checker);
    }
  }
  large_reductions(comm, checker);
  large_exchanges(comm, checker);
}

// One hash of all ranks' results, the same on all of them.
inline uint64_t common_hash(Communicator& comm, const Checker& checker) {
  std::vector<uint64_t> all(static_cast<size_t>(comm.size()));
  const uint64_t mine = checker.hash();
  comm.all_gather(&mine, all.data(), Counts(all.size(), 1), DType::kI64).wait();
  uint64_t hash = 0;
  for (const uint64_t h : all) hash = hash_combine(hash, h);
  return hash;
}

}  // namespace weft::comm_cases
