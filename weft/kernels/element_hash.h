#pragma once
// A hash of a tensor's elements that adds over parts: shards hash what they have, against damage (not against attackers).

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::kernels {

// A part's share of a tensor's hash: the sum (mod 2^64) over its elements of bits times a random odd key of the index in the
// tensor. It adds over parts, so that ranks hash what they have and the tensor's hash does not know how it was cut. Another value
// of one element is always another hash. `item`: bytes of an element, 1, 2, 4 or 8; `first`: the index of the first. On the
// caller's thread.
uint64_t hash_elements(std::span<const std::byte> bytes, int64_t item, int64_t first);
// The same, and copies the elements on the way, to where they do not overlap: memory is read once.
uint64_t copy_and_hash_elements(std::byte* to, std::span<const std::byte> bytes, int64_t item, int64_t first);

}  // namespace weft::kernels
