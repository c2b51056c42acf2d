#include "based/kernels/linear/gated_mlp.h"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
namespace gpu = kernels::cuda;

// Reports a product's time relative to that of its operations at peak rate. Its data exceeds the L2 cache.
void time_product(Report& report, const std::string& name, int64_t operations, const std::function<void(cudaStream_t)>& call) {
  report.add({"", name, median_ms(1, [&](int, cudaStream_t stream) { call(stream); }), "ms", static_cast<double>(operations) / 790e9});
}

void time_gated_mlp(Report& report) {
  struct Sizes {
    int64_t rows, in, width;
  };
  for (const Sizes& s : {Sizes{32768, 1024, 2048}, Sizes{32768, 1024, 2816}, Sizes{8192, 1792, 3584}}) {
    const std::string name = std::to_string(s.rows) + "x" + std::to_string(s.in) + "x" + std::to_string(s.width) + " bf16";
    const int64_t hidden = s.rows * s.width * 2;
    const Buffer x = random_buffer(s.rows * s.in, DType::bf16, 1, 1), weight = random_buffer(2 * s.width * s.in, DType::bf16, 0.03, 2);
    const Buffer h = random_buffer(s.rows * 2 * s.width, DType::bf16, 1, 3), y(hidden), grad_h(2 * hidden);
    time_product(report, "gated_hidden " + name, 4 * s.rows * s.width * s.in, [&](cudaStream_t stream) {
      check(gpu::gated_hidden({x.as(), weight.as(), h.as(), y.as(), s.rows, s.in, s.width}, on_stream(stream)));
    });
    time_product(report, "gated_hidden without h " + name, 4 * s.rows * s.width * s.in, [&](cudaStream_t stream) {
      check(gpu::gated_hidden({x.as(), weight.as(), nullptr, y.as(), s.rows, s.in, s.width}, on_stream(stream)));
    });
    time_product(report, "gated_hidden backward " + name, 2 * s.rows * s.width * s.in, [&](cudaStream_t stream) {
      check(gpu::gated_hidden_backward({x.as(), weight.as(), h.as(), grad_h.as(), s.rows, s.in, s.width}, on_stream(stream)));
    });
  }
}

const DefineFamily<Report> kGatedMlp("gated_mlp", time_gated_mlp);

}  // namespace
}  // namespace based::bench
