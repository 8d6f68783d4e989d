#include "weft/kernels/attention.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "weft/base/threads.h"
#include "weft/kernels/attention_simd.h"
#include "weft/kernels/row_pointers.h"

namespace weft::kernels {
namespace {

struct Scratch {
  std::unique_ptr<float[]> memory;
  int64_t size = 0;
};

// The calling thread's scratch, kept between calls.
float* scratch_of(int64_t n) {
  thread_local Scratch scratch;
  if (scratch.size < n) {
    scratch.memory = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(n));
    scratch.size = n;
  }
  return scratch.memory.get();
}

void check_shape(const KvShape& shape) {
  WEFT_CHECK(shape.block_size >= 1 && kKeyBlock % shape.block_size == 0, "a cache block of {} keys does not divide {}",
             shape.block_size, kKeyBlock);
  WEFT_CHECK(shape.num_kv_heads >= 1 && shape.head_dim >= 1, "{} key/value heads of {}", shape.num_kv_heads, shape.head_dim);
}

template <class T>
void copy_block(const AttentionSequence& s, int64_t head, int64_t first, int64_t last, ConstMatrix k, ConstMatrix v,
                const KvShape& shape, void* cache) {
  const int64_t d = shape.head_dim, bs = shape.block_size;
  T* block = static_cast<T*>(cache) + s.blocks[first / bs] * shape.block_elements();
  T* keys = block + head * d * bs;
  T* values = block + (shape.num_kv_heads + head) * d * bs;
  for (int64_t p = first; p < last; ++p) {
    const int64_t row = s.q_begin + p - s.first_position;
    const T* from = static_cast<const T*>(row_of(k, row)) + head * d;
    for (int64_t i = 0; i < d; ++i) keys[i * bs + p % bs] = from[i];
    std::copy_n(static_cast<const T*>(row_of(v, row)) + head * d, d, values + p % bs * d);
  }
}

void check_packed(int64_t query_rows, int64_t key_rows, std::span<const int64_t> offsets, std::span<const QueryRun> runs) {
  WEFT_CHECK(
      !offsets.empty() && offsets.front() == 0 && offsets.back() == key_rows && std::is_sorted(offsets.begin(), offsets.end()),
      "offsets must ascend from 0 to the {} rows", key_rows);
  const int64_t sequences = static_cast<int64_t>(offsets.size()) - 1;
  for (const QueryRun& r : runs) {
    WEFT_CHECK(0 <= r.begin && r.begin <= r.end && r.end <= query_rows && 0 <= r.sequence && r.sequence < sequences &&
                   0 <= r.first_position,
               "query rows [{}, {}) of sequence {} from position {}, in {} rows and {} sequences", r.begin, r.end, r.sequence,
               r.first_position, query_rows, sequences);
    const int64_t length = offsets[static_cast<size_t>(r.sequence) + 1] - offsets[static_cast<size_t>(r.sequence)];
    WEFT_CHECK(r.first_position + r.end - r.begin <= length, "query rows up to position {} of a sequence of {}",
               r.first_position + r.end - r.begin, length);
  }
}

}  // namespace

void write_kv(ConstMatrix k, ConstMatrix v, std::span<const AttentionSequence> sequences, const KvShape& shape, void* cache) {
  check_shape(shape);
  WEFT_CHECK(k.dtype == shape.dtype && v.dtype == shape.dtype, "keys, values and cache differ in dtype");
  WEFT_CHECK(k.cols == shape.num_kv_heads * shape.head_dim && v.cols == k.cols, "key rows of {} for {} heads of {}", k.cols,
             shape.num_kv_heads, shape.head_dim);
  struct Part {
    const AttentionSequence* sequence;
    int64_t head, first, last;
  };
  std::vector<Part> parts;
  for (const AttentionSequence& s : sequences) {
    const int64_t end = s.first_position + s.q_end - s.q_begin;
    for (int64_t p = s.first_position; p < end;) {
      const int64_t next = std::min(end, (p / shape.block_size + 1) * shape.block_size);
      for (int64_t head = 0; head < shape.num_kv_heads; ++head) parts.push_back({&s, head, p, next});
      p = next;
    }
  }
  const bool bf = is_bf16(k);
  parallel_for(static_cast<int64_t>(parts.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Part& part = parts[static_cast<size_t>(i)];
      if (bf)
        copy_block<bf16>(*part.sequence, part.head, part.first, part.last, k, v, shape, cache);
      else
        copy_block<float>(*part.sequence, part.head, part.first, part.last, k, v, shape, cache);
    }
  });
}

void attention_forward(ConstMatrix q, std::span<const AttentionSequence> sequences, const KvShape& shape, const void* cache,
                       float scale, Matrix o, float* lse) {
  check_shape(shape);
  WEFT_CHECK(q.dtype == shape.dtype && o.dtype == shape.dtype, "queries, output and cache differ in dtype");
  const int64_t d = shape.head_dim, hk = shape.num_kv_heads, hq = q.cols / d, group = hq / hk;
  WEFT_CHECK(q.cols == hq * d && hq == group * hk && group >= 1 && o.cols == q.cols && o.rows == q.rows,
             "queries [{}, {}] into [{}, {}] for {} key/value heads of {}", q.rows, q.cols, o.rows, o.cols, hk, d);
  struct Part {
    const AttentionSequence* sequence;
    int64_t kv_head, head0, heads, first, last;  // query rows [first, last) of the sequence, heads of the group
  };
  std::vector<Part> parts;
  const int64_t heads = std::min(group, kQueryTile), rows = std::max<int64_t>(1, kQueryTile / group);
  int64_t total = 0;
  for (const AttentionSequence& s : sequences) {
    total += s.q_end - s.q_begin;
    // Late rows see most keys: dealt first, so that no thread is left with a long one.
    for (int64_t first = (s.q_end - s.q_begin - 1) / rows * rows; first >= 0 && s.q_end > s.q_begin; first -= rows)
      for (int64_t head = 0; head < hk; ++head)
        for (int64_t head0 = 0; head0 < group; head0 += heads)
          parts.push_back({&s, head, head0, std::min(heads, group - head0), first, std::min(first + rows, s.q_end - s.q_begin)});
  }
  WEFT_CHECK(total <= q.rows, "sequences hold {} query rows of {}", total, q.rows);
  const auto& table = attention_table();
  const bool bf = is_bf16(q);
  const int64_t bytes = bf ? 2 : 4, part_bytes = d * shape.block_size * bytes;
  parallel_for(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    AttentionTile t;
    t.bf16_io = bf;
    t.head_dim = d;
    t.block_size = shape.block_size;
    t.block_bytes = shape.block_bytes();
    t.scale = scale;
    t.scratch = scratch_of(attention_scratch(d));
    for (int64_t i = begin; i < end; ++i) {
      const Part& part = parts[static_cast<size_t>(i)];
      const AttentionSequence& s = *part.sequence;
      t.keys = static_cast<const char*>(cache) + part.kv_head * part_bytes;
      t.values = static_cast<const char*>(cache) + (hk + part.kv_head) * part_bytes;
      t.blocks = s.blocks;
      t.rows = 0;
      for (int64_t r = part.first; r < part.last; ++r)
        for (int64_t h = 0; h < part.heads; ++h, ++t.rows) {
          const int64_t row = s.q_begin + r, head = part.kv_head * group + part.head0 + h;
          t.q[t.rows] = static_cast<const char*>(row_of(q, row)) + head * d * bytes;
          t.o[t.rows] = static_cast<char*>(row_of(o, row)) + head * d * bytes;
          t.lse[t.rows] = lse ? lse + row * hq + head : nullptr;
          t.position[t.rows] = s.first_position + r;
        }
      table.forward(t);
    }
  });
}

std::vector<QueryRun> whole_sequences(std::span<const int64_t> offsets) {
  std::vector<QueryRun> runs;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) runs.push_back({offsets[s], offsets[s + 1], static_cast<int64_t>(s), 0});
  return runs;
}

void attention_packed_forward(ConstMatrix q, ConstMatrix k, ConstMatrix v, int64_t num_heads, int64_t num_kv_heads,
                              std::span<const int64_t> key_offsets, std::span<const QueryRun> runs, float scale, Matrix o,
                              float* lse) {
  WEFT_CHECK(num_heads >= 1 && q.cols % num_heads == 0, "query rows of {} for {} heads", q.cols, num_heads);
  check_packed(q.rows, k.rows, key_offsets, runs);
  const KvShape shape{num_kv_heads, q.cols / num_heads, kKeyBlock, q.dtype};
  int64_t blocks = 0;
  for (size_t s = 0; s + 1 < key_offsets.size(); ++s) blocks += (key_offsets[s + 1] - key_offsets[s] + kKeyBlock - 1) / kKeyBlock;
  std::vector<int32_t> ids(static_cast<size_t>(blocks));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<AttentionSequence> keys, queries;
  for (size_t s = 0, used = 0; s + 1 < key_offsets.size(); ++s) {
    keys.push_back({key_offsets[s], key_offsets[s + 1], 0, ids.data() + used});
    used += static_cast<size_t>((key_offsets[s + 1] - key_offsets[s] + kKeyBlock - 1) / kKeyBlock);
  }
  for (const QueryRun& r : runs)
    queries.push_back({r.begin, r.end, r.first_position, keys[static_cast<size_t>(r.sequence)].blocks});
  const auto cache = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(blocks * shape.block_bytes()));
  write_kv(k, v, keys, shape, cache.get());
  attention_forward(q, queries, shape, cache.get(), scale, o, lse);
}

void attention_packed_backward(ConstMatrix d_o, ConstMatrix q, ConstMatrix k, ConstMatrix v, ConstMatrix o, const float* lse,
                               int64_t num_heads, int64_t num_kv_heads, std::span<const int64_t> key_offsets,
                               std::span<const QueryRun> runs, float scale, Matrix dq, Matrix dk, Matrix dv) {
  const int64_t d = q.cols / num_heads, group = num_heads / num_kv_heads;
  WEFT_CHECK(q.cols == num_heads * d && num_heads == group * num_kv_heads && k.cols == num_kv_heads * d && v.cols == k.cols,
             "queries of {} and keys of {} for {} and {} heads", q.cols, k.cols, num_heads, num_kv_heads);
  WEFT_CHECK(q.dtype == k.dtype && q.dtype == v.dtype && q.dtype == o.dtype, "queries, keys, values and output differ in dtype");
  check_packed(q.rows, k.rows, key_offsets, runs);
  const auto& table = attention_table();
  const int64_t sequences = static_cast<int64_t>(key_offsets.size()) - 1;
  std::vector<std::vector<QueryRun>> runs_of(static_cast<size_t>(sequences));
  for (const QueryRun& r : runs)
    if (r.end > r.begin) runs_of[static_cast<size_t>(r.sequence)].push_back(r);
  const auto column = [](auto m, int64_t row, int64_t col) {
    auto* p = row_of(m, row);
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(p)>>, const char, char>;
    return static_cast<decltype(p)>(static_cast<Byte*>(p) + col * dtype_bytes(m.dtype));
  };
  parallel_for(sequences * num_kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const size_t sequence = static_cast<size_t>(i / num_kv_heads);
      const int64_t row = key_offsets[sequence], head = i % num_kv_heads;
      AttentionBackward t;
      t.length = key_offsets[sequence + 1] - row;
      if (t.length == 0) continue;
      t.runs = runs_of[sequence].data();
      t.num_runs = static_cast<int64_t>(runs_of[sequence].size());
      for (const QueryRun& r : runs_of[sequence]) t.seen = std::max(t.seen, r.first_position + r.end - r.begin);
      t.group = group;
      t.head_dim = d;
      t.scale = scale;
      t.bf16_in = is_bf16(q);
      t.bf16_d_o = is_bf16(d_o);
      t.bf16_out[0] = is_bf16(dq);
      t.bf16_out[1] = is_bf16(dk);
      t.bf16_out[2] = is_bf16(dv);
      t.q = column(q, 0, head * group * d);
      t.k = column(k, row, head * d);
      t.v = column(v, row, head * d);
      t.o = column(o, 0, head * group * d);
      t.d_o = column(d_o, 0, head * group * d);
      t.dq = column(dq, 0, head * group * d);
      t.dk = column(dk, row, head * d);
      t.dv = column(dv, row, head * d);
      t.q_stride = q.stride;
      t.k_stride = k.stride;
      t.v_stride = v.stride;
      t.o_stride = o.stride;
      t.d_o_stride = d_o.stride;
      t.dq_stride = dq.stride;
      t.dk_stride = dk.stride;
      t.dv_stride = dv.stride;
      t.lse = lse + head * group;
      t.lse_stride = num_heads;
      t.scratch = scratch_of(attention_backward_scratch(t.seen, d));
      table.backward(t);
    }
  });
}

}  // namespace weft::kernels
