#include <array>

#include "based/kernels/scan/scan.h"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
namespace gpu = kernels::cuda;

// Tensors with Mamba's layout: z is one half of a projection's output; B and C follow the columns for the time steps in another
// projection's output.
struct Problem {
  int64_t rows, length, channels, state_size;
  DType dtype;
  Buffer x, dt, uz, dtBC, A_log, D, dt_bias, y, state, starts, scratch;

  Problem(int64_t rows_, int64_t length_, int64_t channels_, int64_t state_size_, DType dtype_, uint64_t seed)
      : rows(rows_),
        length(length_),
        channels(channels_),
        state_size(state_size_),
        dtype(dtype_),
        x(random_buffer(tokens() * channels, dtype, 1, seed)),
        dt(random_buffer(tokens() * channels, dtype, 1, seed + 1)),
        uz(random_buffer(2 * tokens() * channels, dtype, 1, seed + 2)),
        dtBC(random_buffer(tokens() * bc_stride(), dtype, 1, seed + 3)),
        A_log(random_buffer(channels * state_size, dtype, 1, seed + 4)),
        D(random_buffer(channels, dtype, 1, seed + 5)),
        dt_bias(random_buffer(channels, dtype, 1, seed + 6)),
        y(tokens() * channels * size()),
        state(zeros(rows * channels * state_size * 4)) {
    std::vector<int64_t> of_rows;
    for (int64_t r = 0; r <= rows; ++r) of_rows.push_back(r * length);
    starts = upload(of_rows);
    scratch = Buffer(gpu::selective_scan_forward_scratch(arguments()));
  }
  int64_t tokens() const { return rows * length; }
  int64_t size() const { return kernels::dtype_size(dtype); }
  int64_t bc_stride() const { return 64 + 2 * state_size; }
  int64_t state_bytes() const { return 2 * rows * channels * state_size * 4; }  // read and written
  int64_t token_bytes() const { return tokens() * channels * size(); }          // bytes of one tensor [tokens, channels]

  void forward(const kernels::SelectiveScan& p, cudaStream_t stream) const {
    check(gpu::selective_scan_forward(p, scratch.as(), on_stream(stream)));
  }
  kernels::SelectiveScan arguments() const {
    kernels::SelectiveScan p;
    p.x = x.as(), p.dt = dt.as(), p.z = uz.as<char>() + channels * size(), p.A_log = A_log.as(), p.D = D.as(), p.dt_bias = dt_bias.as();
    p.B = dtBC.as<char>() + 64 * size(), p.C = dtBC.as<char>() + (64 + state_size) * size(), p.y = y.as();
    p.state = state.as<float>(), p.row_start = starts.as<int64_t>(), p.tokens = tokens(), p.rows = rows, p.channels = channels;
    p.state_size = state_size, p.x_stride = p.dt_stride = p.y_stride = channels, p.z_stride = 2 * channels;
    p.b_stride = p.c_stride = bc_stride(), p.dtype = dtype;
    return p;
  }
};

std::vector<Problem> problems(int sets, int64_t rows, int64_t length, int64_t channels, int64_t state_size, DType dtype) {
  std::vector<Problem> all;
  for (int i = 0; i < sets; ++i) all.emplace_back(rows, length, channels, state_size, dtype, 10 * static_cast<uint64_t>(i) + 1);
  return all;
}

std::string shape_of(const Problem& p) {
  return std::to_string(p.rows) + "x" + std::to_string(p.length) + " channels " + std::to_string(p.channels) + " state " +
         std::to_string(p.state_size) + type_name(p.dtype);
}

void time_forward(Report& report, const std::string& headline, int64_t rows, int64_t length, int64_t channels, int64_t state_size,
                  DType dtype) {
  const int sets = working_sets(4 * rows * length * channels * kernels::dtype_size(dtype));
  const std::vector<Problem> all = problems(sets, rows, length, channels, state_size, dtype);
  const double ms = median_ms(sets, [&](int i, cudaStream_t stream) { all[i].forward(all[i].arguments(), stream); });
  report.add({headline, "selective_scan " + shape_of(all[0]), ms, "ms",
              static_cast<double>(4 * all[0].token_bytes() + all[0].state_bytes()) / bytes_per_ms()});
}

// As in a training step: the forward keeps states for the backward.
void time_forward_backward(Report& report, const std::string& headline, int64_t rows, int64_t length, int64_t channels, int64_t state_size,
                           DType dtype) {
  const Problem p(rows, length, channels, state_size, dtype, 1);
  const int64_t count = p.tokens() * channels, size = p.size();
  const int64_t chunk_bytes =
      kernels::selective_scan_chunks(p.tokens(), rows, kernels::kSelectiveScanCudaChunk) * channels * state_size * 4;
  const Buffer g = random_buffer(count, dtype, 1, 100), chunks(chunk_bytes), of_x(count * size), of_dt(count * size), of_z(count * size),
               of_B(p.tokens() * state_size * size), of_C(p.tokens() * state_size * size), of_A_log(channels * state_size * 4),
               of_D(channels * 4), of_dt_bias(channels * 4);
  kernels::SelectiveScanBackward b;
  b.forward = p.arguments(), b.forward.chunk_states = chunks.as<float>();
  b.grad_y = g.as(), b.grad_x = of_x.as(), b.grad_dt = of_dt.as(), b.grad_z = of_z.as(), b.grad_z_stride = channels, b.grad_B = of_B.as(),
  b.grad_C = of_C.as();
  b.grad_A_log = of_A_log.as<float>(), b.grad_D = of_D.as<float>(), b.grad_dt_bias = of_dt_bias.as<float>();
  const Buffer scratch(gpu::selective_scan_backward_scratch(b));
  const double ms = median_ms(1, [&](int, cudaStream_t stream) {
    p.forward(b.forward, stream);
    check(gpu::selective_scan_backward(b, scratch.as(), on_stream(stream)));
  });
  report.add({headline, "selective_scan forward + backward " + shape_of(p), ms, "ms",
              static_cast<double>((4 + 7) * p.token_bytes() + 2 * chunk_bytes) / bytes_per_ms()});
}

void time_step(Report& report, const std::string& headline, int64_t rows) {
  constexpr int64_t channels = 2048, state_size = 16;
  const int sets = working_sets(2 * rows * channels * state_size * 4);
  const std::vector<Problem> all = problems(sets, rows, 1, channels, state_size, DType::bf16);
  const double ms = median_ms(sets, [&](int i, cudaStream_t stream) {
    kernels::SelectiveScan p = all[i].arguments();
    p.state_is_private = true;
    check(gpu::selective_scan_step(p, on_stream(stream)));
  });
  report.add({headline, "selective_scan_step " + shape_of(all[0]), ms, "ms",
              static_cast<double>(4 * all[0].token_bytes() + all[0].state_bytes()) / bytes_per_ms()});
}

void time_selective_scan(Report& report) {
  time_forward(report, "selective_scan_forward_2x16384", 2, 16384, 2048, 16, DType::bf16);
  time_forward(report, "", 16, 2048, 2048, 16, DType::bf16);
  time_forward(report, "", 1, 2048, 2048, 16, DType::bf16);
  time_forward_backward(report, "selective_scan_forward_backward_16x2048", 16, 2048, 2048, 16, DType::bf16);
  // Sizes of small models, in fp32.
  for (const auto& [rows, length, channels, state_size] :
       {std::array<int64_t, 4>{256, 64, 256, 16}, {256, 256, 256, 16}, {256, 256, 512, 24}, {16, 1024, 128, 8}}) {
    time_forward(report, "", rows, length, channels, state_size, DType::f32);
    time_forward_backward(report, "", rows, length, channels, state_size, DType::f32);
  }
  for (const int64_t rows : {1, 16, 128}) time_step(report, "selective_scan_step_b" + std::to_string(rows), rows);
}

const DefineFamily<Report> kSelectiveScan("selective_scan", time_selective_scan);

}  // namespace
}  // namespace based::bench
