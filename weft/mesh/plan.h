#pragma once
// The one planner: which boxes go from which rank to which, so that a tensor in one layout becomes the same tensor in another.
// Loading, gathering, saving and refitting are this. The layouts may be on different meshes and worlds; a rank number means the
// same process in both. Deterministic: every rank that plans the same layouts in the same order gets the same plan.

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "weft/mesh/layout.h"

namespace weft {

// One box; in both local tensors it is a box of the same size at the offset given. source == destination is a local copy.
struct Transfer {
  int64_t source = 0, destination = 0;
  Box box;  // of the global tensor
  std::vector<int64_t> source_offset, destination_offset;
  bool operator==(const Transfer&) const = default;
};

// The part of it that is this box, with its places.
Transfer part_of(const Transfer& t, const Box& part);

// Elements that each rank has been given to send so far. One plan after another on the same SendLoad balances many tensors; those
// with few holders first balance best.
using SendLoad = std::map<int64_t, int64_t>;

// Every element that a destination rank owns arrives exactly once, from one rank that owns it: from itself where it can, else
// from the holder that has sent least, by neighbourhood in rank order where all are equal (so that each replica of a mesh gathers
// within itself). Within one layout's holders of the same boxes, the most and the least loaded are at most one largest transfer
// apart. Sorted by source, destination, offset. ValueError for different shapes, partial axes (redistribute.h), elements that
// nobody holds, and sources made of boxes that overlap without being equal. Takes time in proportion to transfers, and to the
// boxes of both layouts that meet along one dim.
std::vector<Transfer> plan_copy(const Layout& from, const Layout& to, SendLoad* load = nullptr);

// The planner itself, on holder sets whose boxes are disjoint from set to set (destinations need not be). `dims` of the tensor.
std::vector<Transfer> plan_copy(const std::vector<HolderSet>& from, const std::vector<HolderSet>& to, int64_t dims,
                                SendLoad* load);

// What a piece of the destination gets from a piece of the source.
struct Meeting {
  const HolderSet* have = nullptr;
  const HolderSet* need = nullptr;
  Box box;  // not empty
  std::vector<int64_t> source_offset, destination_offset;
};
// Calls visit for each pair of boxes that meet. Source boxes are disjoint from set to set. ValueError for elements that nobody
// holds.
void for_each_meeting(const std::vector<HolderSet>& from, const std::vector<HolderSet>& to, int64_t dims,
                      const std::function<void(const Meeting&)>& visit);

// By source, destination, offset.
void sort_transfers(std::vector<Transfer>* plan);

// The integrity check of a plan from `from` to `to`: each transfer lies within what its source and its destination own and at the
// right offsets, each destination gets all of its elements once, none that it has. A failed WEFT_CHECK else.
void check_plan(const std::vector<Transfer>& plan, const Layout& from, const Layout& to);

// Bytes on the wire, local copies not counted; ranks that send or receive nothing are not there.
std::map<int64_t, int64_t> bytes_sent(const std::vector<Transfer>& plan, int64_t element_size);
std::map<int64_t, int64_t> bytes_received(const std::vector<Transfer>& plan, int64_t element_size);

// What `rank` owns in `to` and does not own in `from`: the least that it can receive.
int64_t missing_bytes(const Layout& from, const Layout& to, int64_t rank, int64_t element_size);

}  // namespace weft
