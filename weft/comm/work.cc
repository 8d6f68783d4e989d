#include <exception>

#include "weft/comm/communicator.h"
#include "weft/comm/rank_context.h"

namespace weft {

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    finish();
    op_ = std::move(other.op_);
  }
  return *this;
}

Work::~Work() { finish(); }

void Work::wait() {
  if (!op_) return;
  const std::shared_ptr<Op> op = std::move(op_);
  op->group->queue->wait(*op);
  if (op->after) op->after();
}

bool Work::done() const { return !op_ || op_->done.load(std::memory_order_acquire); }

void Work::finish() noexcept {
  if (!op_ || (done() && !op_->after)) return;
  if (std::uncaught_exceptions() > 0) {
    if (!done()) op_->group->queue->withdraw(*op_);
    return;
  }
  try {
    wait();
  } catch (const PeerLostError&) {  // the next call of the communicator throws it again
  }
}

}  // namespace weft
