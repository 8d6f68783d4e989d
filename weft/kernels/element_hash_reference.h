#pragma once
// The rule of element_hash.h, an element at a time: the oracle of its tests, equal bit for bit.

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::kernels::reference {

uint64_t hash_elements(std::span<const std::byte> bytes, int64_t item, int64_t first);

}  // namespace weft::kernels::reference
