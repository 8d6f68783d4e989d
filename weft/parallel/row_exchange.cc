#include "weft/parallel/row_exchange.h"

#include <ATen/ops/empty.h>

#include <numeric>

#include "weft/nn/autograd.h"
#include "weft/nn/view.h"

namespace weft {
namespace {

using Counts = std::vector<int64_t>;

at::Tensor exchange(const at::Tensor& rows, const Counts& send, const Counts& receive, const Communicator& axis, const char* purpose) {
  const int64_t width = rows.size(1);
  at::Tensor out = at::empty({std::accumulate(receive.begin(), receive.end(), int64_t{0}), width}, rows.options());
  Counts sent = send, received = receive;
  for (int64_t& n : sent) n *= width;
  for (int64_t& n : received) n *= width;
  axis.all_to_all(rows.data_ptr(), sent, out.data_ptr(), received, nn::dtype_of(rows), purpose).wait();
  return out;
}

}  // namespace

at::Tensor exchange_rows(const at::Tensor& rows, const Counts& send, const Counts& receive, const Communicator& axis, const char* purpose) {
  at::Tensor out = exchange(rows.detach().contiguous(), send, receive, axis, purpose);
  return nn::record({rows}, {}, out, [send, receive, axis, purpose](const nn::Grads& g) -> nn::Grads {
    return {exchange(g[0].contiguous(), receive, send, axis, purpose)};
  });
}

}  // namespace weft
