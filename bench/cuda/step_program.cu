// A whole step of a small language model, as its kernels one by one and as one program of them: against sums in double, against each
// other, and their speed at the sizes of Based's models.
#include <algorithm>
#include <cmath>
#include <memory>

#include "based/kernels/device_code.h"
#include "bench/cuda/layers.cuh"
#include "bench/cuda/step_graph.cuh"
#include "bench/cuda/step_reference.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::Stream;
namespace gpu = kernels::cuda;

Buffer weights(int64_t out, int64_t in, uint64_t seed) { return random_buffer(out * in, DType::bf16, 1 / std::sqrt(double(in)), seed); }

StepLayer make_layer(const StepSizes& s, char kind, uint64_t seed) {
  StepLayer layer;
  layer.kind = kind;
  const int64_t d = s.width, features = kernels::packed_features(s.feature_dim);
  const auto next = [&seed] { return seed++; };
  const auto small = [&](int64_t n) { return random_buffer(n, DType::bf16, 0.1, next()); };
  layer.norm1 = random_buffer(d, DType::bf16, 1, next()), layer.norm2 = random_buffer(d, DType::bf16, 1, next());
  layer.fc1 = weights(4 * d, d, next()), layer.fc2 = weights(d, 2 * d, next());
  if (kind == 'c') {
    layer.in = weights(4 * d, d, next()), layer.in_bias = small(4 * d), layer.taps = random_buffer(2 * d * 3, DType::bf16, 1, next());
    layer.taps_bias = small(2 * d), layer.out = weights(d, 2 * d, next()), layer.out_bias = small(d);
    layer.state = random_buffer(2 * d * 2, DType::f32, 1, next());
  } else if (kind == 't') {
    layer.in = weights(2 * s.heads * s.feature_dim, d, next()), layer.value = weights(d, d, next()), layer.out = weights(d, d, next());
    layer.state = random_buffer(features * d, DType::f32, 1, next());
    std::vector<float> sums(static_cast<size_t>(s.heads * features), 0.0F);
    for (int64_t head = 0; head < s.heads; ++head) sums[static_cast<size_t>(head * features)] = 20;
    layer.sums = upload_floats(sums);
  } else {
    layer.in = weights(3 * d, d, next()), layer.out = weights(d, d, next());
    layer.state = random_buffer(2 * s.window * d, DType::bf16, 1, next());
    layer.position = upload({s.window + 3});
  }
  return layer;
}

// The step's launches, on activations that all layers share.
class Step {
 public:
  Step(const StepSizes& s, std::vector<StepLayer>& layers, const Buffer& norm, const Buffer& vocabulary)
      : s_(s), layers_(layers), norm_(norm), vocabulary_(vocabulary), x_(random_buffer(s.width, DType::f32, 1, 5)) {
    for (Buffer& b : activations_) b = Buffer(4 * s.width * 2);
    logits_ = Buffer(s.vocabulary * 2);
  }
  void launch(Stream stream) {
    stream_ = stream;
    void *y = at(0), *u = at(1), *mixed = at(2), *out = at(3);
    bool first = true;
    for (StepLayer& layer : layers_) {
      normalise(layer.norm1, first ? nullptr : out, y);
      first = false;
      mix(layer, y, u, mixed, out);
      normalise(layer.norm2, out, y);
      check(gpu::linear_swiglu(make(y, layer.fc1, nullptr, u, s_.width, 4 * s_.width), stream_));
      check(gpu::linear(make(u, layer.fc2, nullptr, out, 2 * s_.width, s_.width), stream_));
    }
    normalise(norm_, out, y);
    check(gpu::linear(make(y, vocabulary_, nullptr, logits_.as(), s_.width, s_.vocabulary), stream_));
  }
  const Buffer& logits() const { return logits_; }
  const Buffer& x() const { return x_; }

 private:
  void* at(int i) const { return activations_[i].as(); }
  static kernels::Linear make(const void* x, const Buffer& weight, const Buffer* bias, void* y, int64_t in, int64_t out) {
    return {x, weight.as(), bias != nullptr ? bias->as() : nullptr, y, 1, in, out, in, in, out, DType::bf16, DType::bf16, false, true};
  }
  void normalise(const Buffer& weight, const void* add, void* y) {
    check(gpu::rms_norm_forward(
        {x_.as(), add, add != nullptr ? x_.as() : nullptr, weight.as(), y, nullptr, 1, s_.width, 1e-5F, DType::f32, DType::bf16}, stream_));
  }
  void mix(StepLayer& layer, const void* y, void* u, void* mixed, void* out) {
    const int64_t d = s_.width;
    char* parts = static_cast<char*>(u);
    if (layer.kind == 'c') {
      check(gpu::linear(make(y, layer.in, &layer.in_bias, u, d, 4 * d), stream_));
      kernels::ShortConv c{};
      c.x = u, c.gate = parts + 4 * d, c.weight = layer.taps.as(), c.bias = layer.taps_bias.as(), c.y = mixed;
      c.state = layer.state.as<float>(), c.tokens = c.rows = 1, c.channels = 2 * d, c.x_stride = c.gate_stride = 4 * d;
      c.y_stride = 2 * d, c.taps = 3, c.silu = true, c.dtype = DType::bf16;
      check(gpu::short_conv_step(c, stream_));
      return check(gpu::linear(make(mixed, layer.out, &layer.out_bias, out, 2 * d, d), stream_));
    }
    if (layer.kind == 't') {
      const int64_t narrow = s_.heads * s_.feature_dim;
      kernels::Linear q = make(y, layer.in, nullptr, u, d, narrow), k = q;
      k.weight = layer.in.as<char>() + narrow * d * 2, k.y = parts + 2 * narrow;
      check(gpu::linear(q, stream_)), check(gpu::linear(k, stream_));
      check(gpu::linear(make(y, layer.value, nullptr, parts + 4 * narrow, d, d), stream_));
      kernels::TaylorAttention t{};
      t.q = q.y, t.k = k.y, t.v = parts + 4 * narrow, t.y = mixed, t.kv_state = layer.state.as<float>();
      t.k_state = layer.sums.as<float>(), t.tokens = t.rows = 1, t.heads = static_cast<int32_t>(s_.heads);
      t.feature_dim = static_cast<int32_t>(s_.feature_dim), t.head_dim = static_cast<int32_t>(d / s_.heads), t.dtype = DType::bf16;
      t.state_is_settled = true;
      check(gpu::taylor_attention_step(t, stream_));
    } else {
      check(gpu::linear(make(y, layer.in, nullptr, u, d, 3 * d), stream_));
      kernels::CausalAttentionStep a{};
      a.q = u, a.k = parts + 2 * d, a.v = parts + 4 * d, a.y = mixed, a.k_ring = layer.state.as();
      a.v_ring = layer.state.as<char>() + s_.window * d * 2, a.position = layer.position.as<int64_t>(), a.rows = 1;
      a.capacity = s_.window, a.q_stride = a.k_stride = a.v_stride = 3 * d;
      a.heads = a.kv_heads = static_cast<int32_t>(s_.heads), a.head_dim = static_cast<int32_t>(d / s_.heads);
      a.scale = static_cast<float>(1 / std::sqrt(double(d) / double(s_.heads))), a.dtype = a.ring_dtype = DType::bf16;
      a.ring_is_settled = true, a.rotary_base = 10000;
      check(gpu::causal_attention_step(a, stream_));
    }
    check(gpu::linear(make(mixed, layer.out, nullptr, out, d, d), stream_));
  }

  const StepSizes s_;
  std::vector<StepLayer>& layers_;
  const Buffer &norm_, &vocabulary_;
  Buffer x_, activations_[4], logits_;
  Stream stream_;
};

// A step as a graph, once one has run as kernels.
StepGraph make_graph(Step& step, bool fused) {
  step.launch({});  // what the launchers do once
  check(cudaDeviceSynchronize(), "a step");
  return {[&](Stream stream) { step.launch(stream); }, fused ? gpu::fuse_step : nullptr};
}
bool is_one_kernel(const StepGraph& graph) { return graph.done().kernels == 1 && graph.done().launches == graph.launches(); }
double median_ms(StepGraph& graph) {
  cudaEvent_t events[2];
  for (cudaEvent_t& e : events) check(cudaEventCreate(&e), "cudaEventCreate");
  std::vector<double> times;
  for (int i = 0; i < 30; ++i) {
    check(cudaEventRecord(events[0], graph.stream()), "event");
    for (int j = 0; j < 4; ++j) graph.launch();
    check(cudaEventRecord(events[1], graph.stream()), "event");
    graph.wait();
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events[0], events[1]), "event");
    if (i >= 5) times.push_back(ms / 4);
  }
  for (cudaEvent_t& e : events) check(cudaEventDestroy(e), "event");
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

struct Model {
  StepSizes sizes;
  std::vector<StepLayer> layers;
  Buffer norm, vocabulary;
  Model(const StepSizes& s, const std::string& kinds)
      : sizes(s), norm(random_buffer(s.width, DType::bf16, 1, 1)), vocabulary(weights(s.vocabulary, s.width, 2)) {
    for (const char kind : kinds) layers.push_back(make_layer(s, kind, 100 * (layers.size() + 1)));
  }
};

// Steps one by one and as a program from the same start; both have made one step more when their graphs are made.
void verify_one(Report& report, const std::string& name, const StepSizes& sizes, const std::string& kinds, bool in_double) {
  Model models[2] = {{sizes, kinds}, {sizes, kinds}};
  std::vector<double> logits[2], x[2], state[2];
  StepReference reference(sizes, models[0].layers, models[0].norm, models[0].vocabulary);
  for (int fused = 0; fused < 2; ++fused) {
    Model& m = models[fused];
    Step step(sizes, m.layers, m.norm, m.vocabulary);
    if (fused == 0 && in_double) reference.start(step.x());
    StepGraph graph = make_graph(step, fused == 1);
    if (fused == 1 && !is_one_kernel(graph)) report.fail(name + ": the step is not one kernel");
    for (int i = 0; i < 3; ++i) graph.run();
    logits[fused] = download(step.logits().as(), DType::bf16, sizes.vocabulary),
    x[fused] = download(step.x().as(), DType::f32, sizes.width);
    for (StepLayer& layer : m.layers) {
      const DType dtype = layer.kind == 'w' ? DType::bf16 : DType::f32;
      const auto values = download(layer.state.as(), dtype, layer.state.bytes() / kernels::dtype_size(dtype));
      state[fused].insert(state[fused].end(), values.begin(), values.end());
    }
  }
  report.expect(name + ", logits against kernels", relative_error(logits[1], logits[0]), 2e-2);
  report.expect(name + ", residual against kernels", relative_error(x[1], x[0]), 1e-2);
  report.expect(name + ", states against kernels", relative_error(state[1], state[0]), 1e-2);
  if (!in_double) return;
  for (int i = 0; i < 4; ++i) reference.step();
  report.expect(name + ", kernels", relative_error(logits[0], reference.logits()), 3e-2);
  report.expect(name + ", logits", relative_error(logits[1], reference.logits()), 3e-2);
}

constexpr StepSizes kLarge{1792, 16, 16, 16, 50304}, kMiddle{1024, 16, 16, 64, 50304}, kSmall{512, 8, 16, 8, 1000};

std::string hybrid(size_t count, size_t last) {
  std::string kinds(count, 'c');
  for (size_t i = 1; i <= last; i += 5) kinds[i] = 't', kinds[i + 1] = 'w';
  return kinds;
}

void time_one(Report& report, const std::string& name, const StepSizes& sizes, const std::string& kinds) {
  Model model(sizes, kinds);
  Step step(sizes, model.layers, model.norm, model.vocabulary);
  int64_t bytes = model.vocabulary.bytes();
  for (const StepLayer& layer : model.layers)
    bytes += layer.in.bytes() + layer.value.bytes() + layer.out.bytes() + layer.fc1.bytes() + layer.fc2.bytes();
  for (const bool fused : {false, true}) {
    StepGraph graph = make_graph(step, fused);
    if (fused && !is_one_kernel(graph)) report.fail(name + ": the step is not one kernel");
    report.add({"", name + (fused ? ", one kernel" : ", kernels one by one"), median_ms(graph), "ms", double(bytes) / kBytesPerMs});
  }
}

}  // namespace

void verify_step_program(Report& report) {
  if (!gpu::runs_hopper_code()) return report.no_kernel("a step in one kernel");
  verify_one(report, "step of 3 layers of 512", kSmall, "ctw", true);
  verify_one(report, "step of 3 layers of 1024", kMiddle, "ctw", false);
  verify_one(report, "step of 6 layers of 1792", kLarge, "ctwctw", false);
}

void time_step_program(Report& report) {
  time_one(report, "step of 36 layers of 1792", kLarge, hybrid(36, 31));
  time_one(report, "step of 27 layers of 1024", kMiddle, hybrid(27, 21));
}

}  // namespace based::bench
