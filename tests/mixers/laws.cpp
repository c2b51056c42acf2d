#include "tests/mixers/laws.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>

#include "based/core/error.h"
#include "based/ops/linear/linear.h"

namespace based::laws {
namespace {

using Shared = std::shared_ptr<Mixer>;

// Two mixers with the same weights: one in the tested type, and one in double with the rounded values.
struct Twins {
  Shared exact, tested;
};

// Random weights, large enough that no part of the output is below the tolerance.
void draw_weights(Mixer& mixer) {
  const torch::NoGradGuard no_grad;
  for (Tensor& parameter : mixer.parameters()) {
    parameter.normal_(0, parameter.dim() < 2 ? 0.5 : 1 / std::sqrt(static_cast<double>(parameter.size(-1))));
  }
}

void copy_weights(const Mixer& from, Mixer& to) {
  const torch::NoGradGuard no_grad;
  const auto sources = from.named_parameters();
  for (auto& parameter : to.named_parameters()) parameter.value().copy_(sources[parameter.key()]);
}

Twins make_twins(const Subject& subject, torch::Dtype dtype) {
  torch::manual_seed(7);
  Twins twins{subject.make(), subject.make()};
  draw_weights(*twins.tested);
  twins.tested->to(subject.device, dtype);
  twins.exact->to(torch::kFloat64);
  copy_weights(*twins.tested, *twins.exact);
  return twins;
}

// Inputs with a non-zero mean, so that averages over long sequences do not vanish.
Tensor draw_input(const Subject& subject, int64_t tokens, torch::Dtype dtype) {
  return (torch::randn({tokens, subject.d_model}, torch::kFloat64) + torch::linspace(-1, 1, subject.d_model, torch::kFloat64))
      .to(subject.device, dtype);
}

Sequences one_row(const Tensor& x) { return Sequences::equal(1, x.size(0), x.device()); }
Slots slot(int64_t index, torch::Device device) { return torch::tensor({index}, torch::kInt64).to(device); }
// The input of the double reference.
Tensor in_double(const Tensor& x) { return x.to(torch::kCPU, torch::kFloat64); }

// The largest difference divided by the largest entry, or infinity if any value is not finite.
double relative_error(const Tensor& actual, const Tensor& expected) {
  if (expected.numel() == 0) return actual.sizes() == expected.sizes() ? 0 : std::numeric_limits<double>::infinity();
  const double error = (in_double(actual) - in_double(expected)).abs().max().item<double>();
  const double scale = in_double(expected).abs().max().item<double>();
  if (!std::isfinite(error) || !std::isfinite(scale)) return std::numeric_limits<double>::infinity();
  return error == 0 ? 0 : error / scale;
}

// The place of the largest difference and its values: " at [3, 0]: 1.5 instead of 2". NaN counts as the largest.
std::string where(const Tensor& actual, const Tensor& expected) {
  if (expected.numel() == 0 || actual.sizes() != expected.sizes()) return {};
  const Tensor a = in_double(actual).flatten(), e = in_double(expected).flatten();
  const Tensor difference = torch::nan_to_num((a - e).abs(), std::numeric_limits<double>::infinity());
  const int64_t at = difference.masked_fill(a.eq(e), -1).argmax().item<int64_t>();
  std::vector<int64_t> index;
  for (int64_t d = expected.dim(), left = at; d-- > 0; left /= expected.size(d)) index.insert(index.begin(), left % expected.size(d));
  std::ostringstream text;
  text << std::setprecision(9) << " at " << at::IntArrayRef(index) << ": " << a[at].item<double>() << " instead of "
       << e[at].item<double>();
  return text.str();
}

bool same_bits(const Tensor& a, const Tensor& b) { return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.equal(b); }

// Empty if both are equal bit for bit, otherwise a description of the difference.
Violation compare_bits(const std::string& what, const Tensor& actual, const Tensor& expected) {
  if (same_bits(actual, expected)) return {};
  std::ostringstream text;
  text << what;
  if (actual.sizes() != expected.sizes() || actual.scalar_type() != expected.scalar_type()) {
    text << ": " << actual.toString() << " " << actual.sizes() << " instead of " << expected.toString() << " " << expected.sizes();
  } else {
    text << ": " << actual.ne(expected).sum().item<int64_t>() << " of " << actual.numel() << " numbers differ, relative error "
         << relative_error(actual, expected) << where(actual, expected);
  }
  return text.str();
}

// A layer's state, and the number of tokens of each slot, which a model counts.
struct State {
  MixerState layer;
  Tensor seen;  // int64 [slots], tokens

  void zero(const Slots& slots) {
    layer.zero(slots);
    seen.index_fill_(0, slots, 0);
  }
  void copy(int64_t from, int64_t to) {
    layer.copy(from, to);
    seen[to].copy_(seen[from]);
  }
  State extract(int64_t slot) const { return {layer.extract(slot), seen.narrow(0, slot, 1).clone()}; }
  void insert(const State& one, int64_t slot) {
    layer.insert(one.layer, slot);
    seen[slot].copy_(one.seen[0]);
  }
};

State make_state(const Mixer& mixer, int64_t slots, torch::Device device) {
  MixerState layer = mixer.make_state(slots);
  return {layer, torch::zeros({std::max(slots, layer.slots())}, torch::dtype(torch::kInt64).device(device))};
}

// Calls a mixer as a model does.
Tensor forward(Mixer& mixer, const Tensor& x, const Sequences& rows) { return mixer.forward(x, Pass(rows)); }
Tensor forward(Mixer& mixer, const Tensor& x) { return forward(mixer, x, one_row(x)); }
Tensor prefill(Mixer& mixer, const Tensor& x, const Sequences& rows, State& state, const Slots& slots) {
  const Tensor seen = state.seen.index_select(0, slots);
  const Tensor y = mixer.prefill(x, state.layer, Pass(rows, slots, seen));
  state.seen.index_copy_(0, slots, seen + rows.cu_seqlens().diff());
  return y;
}
Tensor prefill(Mixer& mixer, const Tensor& x, State& state, const Slots& slots) { return prefill(mixer, x, one_row(x), state, slots); }
Tensor step(Mixer& mixer, const Tensor& x, State& state, const Slots& slots) {
  const Tensor seen = state.seen.index_select(0, slots);
  state.seen.index_copy_(0, slots, seen + 1);
  return mixer.step(x, state.layer, Pass::step(slots, seen));
}

double tolerance(torch::Dtype dtype) { return dtype == torch::kFloat64 ? 1e-10 : dtype == torch::kFloat32 ? 1e-4 : 4e-2; }

Violation compare(const std::string& what, const Tensor& actual, const Tensor& expected, double allowed) {
  const double error = relative_error(actual, expected);
  if (error <= allowed) return {};
  std::ostringstream text;
  text << what << ": relative error " << error << ", allowed " << allowed << where(actual, expected);
  return text.str();
}

// Random piece sizes that sum to `length`: mostly small ones, and a few of any size.
std::vector<int64_t> random_split(int64_t length, std::mt19937_64& random) {
  std::vector<int64_t> pieces;
  for (int64_t left = length; left > 0;) {
    const int64_t bound = random() % 2 == 0 ? std::min<int64_t>(left, 5) : left;
    pieces.push_back(1 + static_cast<int64_t>(random() % bound));
    left -= pieces.back();
  }
  return pieces;
}

// Pieces of one token alternate between step and prefill.
Tensor run_in_pieces(Mixer& mixer, const Tensor& x, const std::vector<int64_t>& pieces) {
  const torch::NoGradGuard no_grad;
  State state = make_state(mixer, 3, x.device());
  const Slots slots = slot(1, x.device());
  std::vector<Tensor> outputs;
  int64_t at = 0, turn = 0;
  for (const int64_t piece : pieces) {
    const Tensor part = x.narrow(0, at, piece);
    const bool steps = piece == 1 && turn++ % 2 == 0;
    outputs.push_back(steps ? step(mixer, part, state, slots) : prefill(mixer, part, state, slots));
    at += piece;
  }
  return torch::cat(outputs);
}

Tensor step_by_step(Mixer& mixer, const Tensor& x, State& state, const Slots& slots) {
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < x.size(0); ++t) outputs.push_back(step(mixer, x.narrow(0, t, 1), state, slots));
  return torch::cat(outputs);
}

// The output, then the gradients of sum(y·g) with respect to x and every trained parameter (zeros if it does not contribute).
struct Results {
  std::vector<std::string> names;
  std::vector<Tensor> values;
};

Results differentiate(Mixer& mixer, const Tensor& x, const Tensor& g, const std::function<Tensor(const Tensor&)>& run) {
  const Tensor input = x.clone().requires_grad_(true);
  const Tensor y = run(input);
  Results results{{"output", "grad of x"}, {y.detach()}};
  std::vector<Tensor> inputs = {input};
  for (const auto& parameter : mixer.named_parameters()) {
    if (!parameter.value().requires_grad()) continue;
    results.names.push_back("grad of " + parameter.key());
    inputs.push_back(parameter.value());
  }
  const auto grads = torch::autograd::grad({(y * g).sum()}, inputs, {}, {}, /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < grads.size(); ++i) results.values.push_back(grads[i].defined() ? grads[i] : torch::zeros_like(inputs[i]));
  return results;
}

// The relative error of one of the results. A gradient may vanish by a symmetry of the mixer (a key's bias in softmax) and then consists of
// rounding errors, so the scale has a floor.
double relative_error(const Results& actual, const Results& expected, size_t at) {
  const Tensor &value = expected.values[at], &grad_of_x = expected.values[1];
  const double scale = value.numel() == 0 ? 0 : value.abs().max().item<double>();
  const double floor = 1e-3 * (grad_of_x.numel() == 0 ? 1 : grad_of_x.abs().max().item<double>());
  return relative_error(actual.values[at], value) * (scale == 0 ? 1 : scale / std::max(scale, floor));
}

Violation compare(const std::string& what, const Results& actual, const Results& expected, const std::function<double(size_t)>& allowed) {
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double error = relative_error(actual, expected, i), most = allowed(i);
    if (error <= most) continue;
    std::ostringstream text;
    text << what << ", " << expected.names[i] << ": relative error " << error << ", allowed " << most
         << where(actual.values[i], expected.values[i]);
    return text.str();
  }
  return {};
}

// One row more than ops::kBatchInvariantRows: with this many rows, results may differ within rounding.
constexpr int64_t kMostRows = ops::kBatchInvariantRows + 1;
constexpr int64_t kSlots = 67;  // a prime above kMostRows; another kSlots slots hold unrelated rows

State copy(State state) {
  for (StateTensor& tensor : state.layer.tensors()) tensor.value = tensor.value.clone();
  state.seen = state.seen.clone();
  return state;
}

// The numbers of rows that steps_independent() compares: all, or those around multiples of 16, where kernels change their blocks. Each is
// the sum of two smaller ones.
std::vector<int64_t> row_counts(bool all) {
  if (!all) return {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, kMostRows};
  std::vector<int64_t> counts(kMostRows);
  std::iota(counts.begin(), counts.end(), 1);
  return counts;
}

// Checks for each n of row_counts() that a batch of n rows gives the same bits as two parts of it: by induction over n, a row gets the bits
// that it has alone. On a CPU only a mixer's default options are tried with all n. On a GPU each part is also a batch of n rows, in which
// the rows of the other part are replaced by unrelated ones. `start` has kSlots slots.
Violation steps_independent(const Subject& subject, torch::Dtype dtype, Mixer& mixer, const State& start) {
  std::mt19937_64 random(13);
  State together = copy(start), apart = copy(start);
  const Tensor order = torch::arange(kSlots, torch::kInt64).to(subject.device);
  const std::vector<int64_t> counts = row_counts(subject.device.is_cuda() || subject.options.empty());
  for (const int64_t rows : counts) {
    const Tensor slots = torch::remainder(order.narrow(0, 0, rows) * 5 + rows, kSlots), x = draw_input(subject, rows, dtype);
    int64_t cut = rows;  // both parts are numbers of rows that were compared before
    while (rows > 1 && !std::binary_search(counts.begin(), counts.end(), rows - cut)) cut = counts[random() % counts.size()];
    const auto part = [&](int64_t from, int64_t to) {
      if (!subject.device.is_cuda()) return step(mixer, x.narrow(0, from, to - from), apart, slots.narrow(0, from, to - from));
      Tensor inputs = draw_input(subject, rows, dtype), among = slots + kSlots;
      inputs.narrow(0, from, to - from).copy_(x.narrow(0, from, to - from));
      among.narrow(0, from, to - from).copy_(slots.narrow(0, from, to - from));
      return step(mixer, inputs, apart, among).narrow(0, from, to - from);
    };
    const Tensor whole = step(mixer, x, together, slots);
    Tensor parts = part(0, cut);
    if (cut < rows) parts = torch::cat({parts, part(cut, rows)});
    const std::string what = "step of " + std::to_string(rows) + " rows, not " + std::to_string(cut) + " and the others apart";
    if (rows == kMostRows) return compare(what, whole, parts, tolerance(dtype));
    Violation violation = compare_bits(what, whole, parts);
    for (int64_t i = 0; i < rows && rows == kMostRows - 1; ++i) {
      const MixerState a = together.layer.extract(i), b = apart.layer.extract(i);
      for (const StateTensor& tensor : a.tensors())
        if (violation.empty()) violation = compare_bits("state's " + tensor.name + " after steps in batches", tensor.value, b[tensor.name]);
    }
    if (!violation.empty()) return violation;
  }
  return {};
}

}  // namespace

std::string flags_of(const Subject& subject) {
  std::string flags = "--d-model " + std::to_string(subject.d_model), line;
  for (std::istringstream lines(subject.options); std::getline(lines, line);) {
    const size_t equals = line.find('=');
    const auto trimmed = [](const std::string& text) {
      const size_t begin = text.find_first_not_of(' ');
      return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
    };
    flags += " --set " + trimmed(line.substr(0, equals)) + "=" + trimmed(line.substr(equals + 1));
  }
  return flags;
}

Violation forward_is_exact(const Subject& subject, torch::Dtype dtype, const std::vector<int64_t>& lengths) {
  const Twins twins = make_twins(subject, dtype);
  const torch::NoGradGuard no_grad;
  for (const int64_t length : lengths) {
    const Tensor x = draw_input(subject, length, dtype);
    const std::string what = "forward of " + std::to_string(length) + " tokens";
    const Violation violation = compare(what, forward(*twins.tested, x), forward(*twins.exact, in_double(x)), tolerance(dtype));
    if (!violation.empty()) return violation;
  }
  return {};
}

Violation forms_agree(const Subject& subject, torch::Dtype dtype, const std::vector<int64_t>& lengths) {
  const Twins twins = make_twins(subject, dtype);
  const torch::NoGradGuard no_grad;
  std::mt19937_64 random(11);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const Tensor x = draw_input(subject, longest, dtype);
  const Tensor expected = forward(*twins.exact, in_double(x));

  State state = make_state(*twins.tested, 2, subject.device);
  Violation violation = compare("step by step", step_by_step(*twins.tested, x, state, slot(1, subject.device)), expected, tolerance(dtype));
  for (const int64_t length : lengths) {
    const Tensor part = x.narrow(0, 0, length), expected_part = expected.narrow(0, 0, length);
    const std::string at = " of " + std::to_string(length) + " tokens";
    if (violation.empty()) violation = compare("forward" + at, forward(*twins.tested, part), expected_part, tolerance(dtype));
    for (int i = 0; i < 4 && violation.empty(); ++i) {
      const Tensor y = run_in_pieces(*twins.tested, part, random_split(length, random));
      violation = compare("prefill in pieces" + at, y, expected_part, tolerance(dtype));
    }
  }
  return violation;
}

Violation causal(const Subject& subject, torch::Dtype dtype) {
  const Twins twins = make_twins(subject, dtype);
  const torch::NoGradGuard no_grad;
  constexpr int64_t length = 150;
  const Tensor x = draw_input(subject, length, dtype);
  const Tensor y = forward(*twins.tested, x);
  for (const int64_t cut : {1, 2, 17, 64, 65, 149}) {
    Tensor other = x.clone();
    other.narrow(0, cut, length - cut).add_(draw_input(subject, length - cut, dtype));
    const Tensor changed = forward(*twins.tested, other).narrow(0, 0, cut);
    // The sums are over the same inputs, but an FFT mixes all inputs, so that rounding errors depend on later ones.
    const double allowed = dtype == torch::kFloat64 ? 1e-12 : dtype == torch::kFloat32 ? 1e-5 : 1e-2;
    const Violation violation = compare("outputs before " + std::to_string(cut), changed, y.narrow(0, 0, cut), allowed);
    if (!violation.empty()) return violation;
  }
  return {};
}

Violation rows_independent(const Subject& subject, torch::Dtype dtype) {
  const Twins twins = make_twins(subject, dtype);
  const torch::NoGradGuard no_grad;
  Mixer& mixer = *twins.tested;
  std::vector<int64_t> lengths = {3, 0, 70, 1, 33, 130, 64};
  for (int64_t row = static_cast<int64_t>(lengths.size()); row < kMostRows; ++row) lengths.push_back(row % 4);
  State start = make_state(mixer, subject.device.is_cuda() ? 2 * kSlots : kSlots, subject.device);
  std::vector<int64_t> starts = {0};
  std::vector<Tensor> inputs, alone;
  for (int64_t row = 0; row < kMostRows; ++row) {
    inputs.push_back(draw_input(subject, lengths[row], dtype));
    starts.push_back(starts.back() + lengths[row]);
    alone.push_back(prefill(mixer, inputs[row], start, slot(row, subject.device)));
  }
  State together = make_state(mixer, kMostRows, subject.device);
  const Tensor packed = prefill(mixer, torch::cat(inputs), Sequences::packed(starts, starts.back(), subject.device), together,
                                torch::arange(kMostRows, torch::dtype(torch::kInt64).device(subject.device)));
  const Violation violation = compare("prefill of a mixed batch", packed, torch::cat(alone), tolerance(dtype));
  return violation.empty() ? steps_independent(subject, dtype, mixer, start) : violation;
}

Violation packed_equals_separate(const Subject& subject, torch::Dtype dtype) {
  const Twins twins = make_twins(subject, dtype);
  const std::vector<int64_t> starts = {0, 0, 5, 6, 70, 70, 107, 108, 108};  // rows of 0, 5, 1, 64, 0, 37, 1, 0 tokens
  const Tensor x = draw_input(subject, starts.back(), dtype), g = torch::randn_like(x);
  const Results separate = differentiate(*twins.tested, x, g, [&](const Tensor& input) {
    std::vector<Tensor> outputs;
    for (size_t row = 0; row + 1 < starts.size(); ++row) {
      const Tensor part = input.narrow(0, starts[row], starts[row + 1] - starts[row]);
      outputs.push_back(forward(*twins.tested, part));
    }
    return torch::cat(outputs);
  });
  const Results packed = differentiate(*twins.tested, x, g, [&](const Tensor& input) {
    return forward(*twins.tested, input, Sequences::packed(starts, starts.back(), subject.device));
  });
  return compare("packed rows", packed, separate, [&](size_t) { return tolerance(dtype); });
}

Violation rows_do_not_poison(const Subject& subject, torch::Dtype dtype) {
  const Twins twins = make_twins(subject, dtype);
  Mixer& mixer = *twins.tested;
  const std::vector<int64_t> starts = {0, 40, 73, 74, 174, 239, 240, 303};  // every second row is poisoned
  const auto rows = static_cast<int64_t>(starts.size()) - 1;
  const Sequences packed = Sequences::packed(starts, starts.back(), subject.device);
  const Slots slots = torch::arange(rows, torch::dtype(torch::kInt64).device(subject.device));
  const Tensor x = draw_input(subject, starts.back(), dtype), g = torch::randn_like(x), next = draw_input(subject, rows, dtype);
  // The results of every row that is not poisoned: the output and the gradient of x. For recurrent mixers also the outputs of prefill and
  // of two steps, the state, and the outputs of a sequence that gets a poisoned row's slot.
  const auto results_of = [&](const Tensor& input, const Tensor& grad, const Tensor& token) {
    std::vector<Tensor> by_token = differentiate(mixer, input, grad, [&](const Tensor& in) { return forward(mixer, in, packed); }).values;
    by_token.resize(2);
    const torch::NoGradGuard no_grad;
    State state;
    if (subject.recurrent) {
      state = make_state(mixer, rows, subject.device);
      by_token.push_back(prefill(mixer, input, packed, state, slots));
    }
    std::vector<std::pair<std::string, Tensor>> all;
    for (int64_t row = 0; row < rows; row += 2) {
      const char* names[] = {"output", "gradient of x", "output of prefill"};
      for (size_t i = 0; i < by_token.size(); ++i)
        all.emplace_back(names[i], by_token[i].narrow(0, starts[row], starts[row + 1] - starts[row]));
    }
    if (!subject.recurrent) return all;
    for (int round = 0; round < 2; ++round) {
      const Tensor y = step(mixer, token, state, slots);
      for (int64_t row = 0; row < rows; row += 2) all.emplace_back("output of a step", y[row]);
    }
    for (int64_t row = 0; row < rows; row += 2) {
      const MixerState row_state = state.layer.extract(row);
      for (const StateTensor& tensor : row_state.tensors()) all.emplace_back("state's " + tensor.name, tensor.value);
    }
    // After zero(), a slot must not depend on the sequence that was in it.
    const Tensor text = x.narrow(0, 0, starts[1]), its_slot = slot(1, subject.device);
    state.zero(its_slot);
    all.emplace_back("output of prefill into its slot", prefill(mixer, text, state, its_slot));
    all.emplace_back("output of a step in its slot", step_by_step(mixer, text.narrow(0, 0, 2), state, its_slot));
    return all;
  };
  const auto expected = results_of(x, g, next);
  for (const double poison : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const Tensor bad_x = x.clone(), bad_g = g.clone(), bad_next = next.clone();
    for (int64_t row = 1; row < rows; row += 2) {
      for (const Tensor& tensor : {bad_x, bad_g}) tensor.narrow(0, starts[row], starts[row + 1] - starts[row]).fill_(poison);
      bad_next[row].fill_(poison);
    }
    const auto actual = results_of(bad_x, bad_g, bad_next);
    for (size_t i = 0; i < expected.size(); ++i)
      if (!same_bits(actual[i].second, expected[i].second))
        return compare_bits(expected[i].first + " changes with a neighbour that is not finite", actual[i].second, expected[i].second);
  }
  return {};
}

Violation gradients_flow_through_state(const Subject& subject, torch::Dtype dtype) {
  const Twins twins = make_twins(subject, dtype);
  const Tensor x = draw_input(subject, 90, dtype), g = torch::randn_like(x);
  const Results whole = differentiate(*twins.tested, x, g, [&](const Tensor& input) { return forward(*twins.tested, input); });
  // A gradient that sums 16-bit terms over tokens may lose several times the tolerance to cancellation, with or without a cut. In 16 bits
  // the pieces are therefore compared with the exact gradient, and may be three times as far from it as the gradient without a cut, or
  // 1.5 tolerances: over 12 draws the error of RWKV-5's bonus without a cut was between 0.005 and 0.03.
  const bool short_type = c10::elementSize(dtype) == 2;
  const Results expected = short_type ? differentiate(*twins.exact, in_double(x), in_double(g),
                                                      [&](const Tensor& input) { return forward(*twins.exact, input); })
                                      : whole;
  const auto allowed = [&](size_t at) {
    return short_type ? std::max(1.5 * tolerance(dtype), 3 * relative_error(whole, expected, at)) : tolerance(dtype);
  };
  for (const int64_t cut : {1, 33, 89}) {
    // The second call has another order of slots, and another row that does not contribute to the loss.
    const Results pieces = differentiate(*twins.tested, x, g, [&](const Tensor& input) {
      State state = make_state(*twins.tested, 2, subject.device);
      const Tensor first = input.narrow(0, 0, cut), second = input.narrow(0, cut, input.size(0) - cut);
      const Tensor y = prefill(*twins.tested, first, state, slot(1, subject.device));
      const Tensor other = prefill(*twins.tested, torch::cat({second, second}), Sequences::equal(2, second.size(0), subject.device), state,
                                   torch::tensor({1, 0}, torch::kInt64).to(subject.device));
      return torch::cat({y, other.narrow(0, 0, second.size(0))});
    });
    const Violation violation = compare("prefill cut at " + std::to_string(cut), pieces, expected, allowed);
    if (!violation.empty()) return violation;
  }
  return {};
}

Violation state_is_replaced_under_gradients(const Subject& subject, torch::Dtype dtype) {
  const Twins twins = make_twins(subject, dtype);
  State state = make_state(*twins.tested, 2, subject.device);
  const Slots slots = slot(1, subject.device);
  for (const int64_t length : {40, 3}) {  // from a fresh state, and from one that is part of a graph
    std::vector<StateTensor> before = state.layer.tensors(), copies = before;
    for (StateTensor& tensor : copies) tensor.value = tensor.value.detach().clone();
    prefill(*twins.tested, draw_input(subject, length, dtype).requires_grad_(true), state, slots);
    for (size_t i = 0; i < before.size(); ++i) {
      const std::string what = "state's " + before[i].name + " is written in place where gradients are on";
      const Violation violation = compare_bits(what, before[i].value, copies[i].value);
      if (!violation.empty()) return violation;
    }
  }
  return {};
}

Violation state_is_a_value(const Subject& subject, torch::Dtype dtype) {
  const Twins twins = make_twins(subject, dtype);
  const torch::NoGradGuard no_grad;
  Mixer& mixer = *twins.tested;
  const Tensor a = draw_input(subject, 75, dtype), b = draw_input(subject, 20, dtype), more = draw_input(subject, 9, dtype);
  const auto serve = [&](const Tensor& prompt, State& state, int64_t at) {
    const Slots slots = slot(at, subject.device);
    return torch::cat({prefill(mixer, prompt, state, slots), step_by_step(mixer, more, state, slots)});
  };
  State fresh = make_state(mixer, 3, subject.device);
  const Tensor b_alone = serve(b, fresh, 1);
  Violation violation;
  const auto differ = [&violation](const std::string& what, const Tensor& actual, const Tensor& expected) {
    violation = compare_bits(what, actual, expected);
    return !violation.empty();
  };
  const auto states_differ = [&](const std::string& what, const State& actual, const State& expected) {
    for (const StateTensor& tensor : actual.layer.tensors())
      if (differ(what + ", " + tensor.name, tensor.value, expected.layer[tensor.name])) return true;
    return differ(what + ", tokens", actual.seen, expected.seen);
  };

  State state = make_state(mixer, 3, subject.device);
  serve(a, state, 0);
  const State neighbour = state.extract(0);
  serve(a, state, 1);
  state.zero(slot(1, subject.device));
  if (differ("a request after another one in its slot", serve(b, state, 1), b_alone)) return violation;
  if (states_differ("a slot while others were served", state.extract(0), neighbour)) return violation;

  state.copy(1, 2);
  const Tensor from_original = step_by_step(mixer, more, state, slot(1, subject.device));
  if (differ("a forked slot's steps", step_by_step(mixer, more, state, slot(2, subject.device)), from_original)) return violation;

  const Tensor expected = step_by_step(mixer, more, state, slot(0, subject.device));
  State elsewhere = make_state(mixer, 2, subject.device);
  elsewhere.insert(neighbour, 1);
  if (differ("an extracted state's steps elsewhere", step_by_step(mixer, more, elsewhere, slot(1, subject.device)), expected))
    return violation;
  serve(draw_input(subject, 300, dtype), elsewhere, 0);
  elsewhere.insert(neighbour, 0);
  differ("steps of a state inserted over a longer one", step_by_step(mixer, more, elsewhere, slot(0, subject.device)), expected);
  return violation;
}

Violation state_bytes_are_real(const Subject& subject, torch::Dtype dtype) {
  const Twins twins = make_twins(subject, dtype);
  const torch::NoGradGuard no_grad;
  for (const int64_t tokens : {1, 100, 257}) {
    State state = make_state(*twins.tested, 1, subject.device);
    const Tensor x = draw_input(subject, tokens, dtype);
    prefill(*twins.tested, x, state, slot(0, subject.device));
    int64_t bytes = 0;
    for (const StateTensor& tensor : state.layer.tensors()) bytes += static_cast<int64_t>(tensor.value.storage().nbytes());
    if (bytes != state_bytes(*twins.tested, tokens)) {
      return "after " + std::to_string(tokens) + " tokens the state takes " + std::to_string(bytes) + " bytes, state_bytes says " +
             std::to_string(state_bytes(*twins.tested, tokens));
    }
    if (!state.layer.grows() && bytes != twins.tested->make_state(1).bytes()) {
      return "after " + std::to_string(tokens) + " tokens the state takes " + std::to_string(bytes) + " bytes, " +
             std::to_string(twins.tested->make_state(1).bytes()) + " when it was new, and does not say that it grows";
    }
  }
  return {};
}

Violation parameters_survive_saving(const Subject& subject, torch::Dtype dtype) {
  const Twins twins = make_twins(subject, dtype);
  const torch::NoGradGuard no_grad;
  std::stringstream file;
  torch::serialize::OutputArchive out;
  twins.tested->save(out);
  out.save_to(file);
  torch::manual_seed(8);
  const Shared loaded = subject.make();
  loaded->to(subject.device, dtype);
  torch::serialize::InputArchive in;
  in.load_from(file);
  loaded->load(in);
  const Tensor x = draw_input(subject, 40, dtype);
  return compare_bits("a mixer with the saved parameters", forward(*loaded, x), forward(*twins.tested, x));
}

Violation error_does_not_grow(const Subject& subject, torch::Dtype dtype, int64_t length) {
  const Twins twins = make_twins(subject, dtype);
  const torch::NoGradGuard no_grad;
  const Tensor x = draw_input(subject, length, dtype);
  const Tensor expected = forward(*twins.exact, in_double(x));
  State state = make_state(*twins.tested, 1, subject.device);
  const Tensor y = in_double(step_by_step(*twins.tested, x, state, slot(0, subject.device)));
  const auto error = [&](int64_t from) {
    const Tensor e = expected.narrow(0, from, 1000);
    return ((y.narrow(0, from, 1000) - e).square().mean() / e.square().mean()).sqrt().item<double>();
  };
  const double first = error(0), last = error(length - 1000);
  if (last <= 1.5 * first) return {};
  std::ostringstream text;
  text << "relative error " << last << " in the last thousand of " << length << " tokens, " << first << " in the first";
  return text.str();
}

NanFill::NanFill() {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
}

NanFill::~NanFill() { at::globalContext().setDeterministicAlgorithms(false, false); }

}  // namespace based::laws
