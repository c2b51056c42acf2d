// BigBird (Zaheer et al. 2020) in causal form, as in the recall experiments. A token attends to itself and the 3 · block_size tokens before
// it, to the first 2 · block_size tokens of the sequence, and to a few random earlier tokens. The random part is a mask of 3 · block_size
// squares of two queries by two keys, drawn anywhere in a sequence of l_max tokens; its future positions are not used.
//
// The published code draws a new mask in every pass, in evaluation too. Here the mask is drawn once from a seed, so that a token's output
// depends only on its past, and a decoder knows which keys it will need again. It stores those, the first keys and the window's.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "based/core/random.h"
#include "based/mixers/kit/fixed_tensor.h"
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/parameters.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/mixers/kit/step_history.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/framework/rows.h"
#include "based/ops/linear/split_columns.h"
#include "based/runtime/transfer.h"

namespace based {
namespace {

struct BigbirdConfig {
  int64_t heads = 1;
  int64_t block_size = 128;
  int64_t l_max = 1024;
  int64_t seed = 0;
  bool qkv_bias = true;
  bool out_bias = true;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("heads", heads, "attention heads, each of size d_model / heads");
    field("block_size", block_size, "a third of the window's earlier tokens, and half of the first tokens, to which all tokens attend");
    field("l_max", l_max, "length of the sequence in which random places are drawn");
    field("seed", seed, "seed of the random places, which differ from layer to layer");
    field("qkv_bias", qkv_bias, "bias of the projection to queries, keys and values");
    field("out_bias", out_bias, "bias of the output projection");
  }
};

// The random mask, and the positions whose keys a decoder must store beyond the window.
struct RandomPlaces {
  Tensor open;                // bool [l_max, l_max]: whether the query (row) may attend to the key (column)
  std::vector<int64_t> kept;  // ascending: the first positions, and those that a query attends to from beyond the window
};

RandomPlaces draw_places(const BigbirdConfig& config, int64_t layer) {
  Random random(static_cast<uint64_t>(config.seed), static_cast<uint64_t>(layer));
  Tensor open = torch::zeros({config.l_max, config.l_max}, torch::kBool);
  auto places = open.accessor<bool, 2>();
  std::set<int64_t> kept;
  for (int64_t p = 0; p < std::min(2 * config.block_size, config.l_max); ++p) kept.insert(p);
  for (int64_t i = 0; i < 3 * config.block_size && config.l_max > 1; ++i) {
    const int64_t query = random.between(0, config.l_max - 2), key = random.between(0, config.l_max - 2);
    if (query <= key) continue;
    for (const int64_t q : {query, query + 1}) {
      for (const int64_t k : {key, key + 1}) {
        places[q][k] = true;
        if (q - k > 3 * config.block_size) kept.insert(k);
      }
    }
  }
  return {open, {kept.begin(), kept.end()}};
}

constexpr int64_t kBigbirdPiece = 512;  // queries scored at a time, which bounds the memory of scores

class Bigbird final : public Mixer {
 public:
  Bigbird(const BigbirdConfig& config, const MixerContext& context) : config_(config), d_model_(context.d_model) {
    check_option("bigbird", "heads", config.heads, 1, 4096);
    head_dim_ = divided("bigbird", "d_model", d_model_, "heads", config.heads);
    check_option("bigbird", "block_size", config.block_size, 1, int64_t{1} << 16);
    check_option("bigbird", "l_max", config.l_max, 1, 8192);  // bounds the mask, l_max² bytes
    RandomPlaces places = draw_places(config, context.layer);
    open_ = register_module("open", std::make_shared<FixedTensor>(places.open.to(parameter_device())));
    kept_positions_ = std::move(places.kept);
    qkv_proj_ = register_module("qkv_proj", std::make_shared<Projection>(d_model_, 3 * d_model_, config.qkv_bias));
    out_proj_ =
        register_module("out_proj", std::make_shared<Projection>(d_model_, d_model_, config.out_bias, output_initial_std(context.layers)));
  }

  Tensor forward(const Tensor& x, const Pass& pass) override {
    const Inputs in = project(x);
    std::vector<Tensor> outputs;
    for (const ops::Run& run : ops::equal_runs(pass.rows().starts())) {
      if (run.length == 0) continue;
      const auto rows = [&](const Tensor& t) { return ops::tokens_of(t, run).transpose(1, 2); };
      const Tensor positions = torch::arange(run.length, pass.cu_seqlens().options());
      outputs.push_back(attend(rows(in.q), rows(in.k), rows(in.v), positions, positions).transpose(1, 2).flatten(0, 1));
    }
    return output(x, outputs);
  }

  // "k" and "v" [slots, 3 · block_size + 1, heads, head_dim]: a ring buffer of the window. "kept_k" and "kept_v" [slots, kept positions,
  // heads, head_dim]: keys and values of kept_positions_.
  MixerState make_state(int64_t slots) const override {
    const auto tensor = [&](const char* name, int64_t steps) {
      return StateTensor{name, torch::zeros({slots, steps, config_.heads, head_dim_}, state_options(qkv_proj_->weight()))};
    };
    const int64_t window = 3 * config_.block_size + 1, kept = static_cast<int64_t>(kept_positions_.size());
    return MixerState({tensor("k", window), tensor("v", window), tensor("kept_k", kept), tensor("kept_v", kept)});
  }

  Formula state_formula(int64_t /*tokens*/) const override {
    const Formula kept{"kept places", static_cast<int64_t>(kept_positions_.size())}, block_size{"block_size", config_.block_size};
    return 2 * (state_number_bytes(qkv_proj_->weight()) * (3 * block_size + 1 + kept)) * Formula{"d_model", d_model_};
  }

  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override {
    const Inputs in = project(x);
    StepHistory history(state, pass, "k");
    const Tensor earlier_k = history.advance("k", in.k), earlier_v = history.advance("v", in.v);
    const auto before = ops::row_starts("bigbird", "the state's rows", history.earlier_cu_seqlens(), earlier_k.size(0));
    store_kept(state, in, pass);
    std::vector<Tensor> outputs;
    for (int64_t row = 0; row < pass.rows().rows(); ++row) {
      const int64_t begin = pass.rows().starts()[row], length = pass.rows().length(row), seen = pass.seen_on_host()[row];
      if (length == 0) continue;
      const int64_t slot = pass.slots_on_host()[row], near = before[row + 1] - before[row];
      const KeptPositions kept = find_kept(seen - near, x.device());
      const auto keys = [&](const Tensor& stored, const Tensor& earlier, const Tensor& own) {
        return torch::cat({stored[slot].index_select(0, kept.entries), earlier.narrow(0, before[row], near), own.narrow(0, begin, length)})
            .transpose(0, 1)
            .unsqueeze(0);
      };
      const Tensor own = torch::arange(seen, seen + length, pass.slots().options());
      const Tensor positions = torch::cat({kept.positions, torch::arange(seen - near, seen + length, own.options())});
      const Tensor q = in.q.narrow(0, begin, length).transpose(0, 1).unsqueeze(0);
      const Tensor y = attend(q, keys(state["kept_k"], earlier_k, in.k), keys(state["kept_v"], earlier_v, in.v), own, positions);
      outputs.push_back(y.squeeze(0).transpose(0, 1));
    }
    return output(x, outputs);
  }

  // Uses prefill, which processes one row at a time.
  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    return prefill(x, state, Pass(Sequences::equal(x.size(0), 1, x.device()), pass.slots(), pass.positions()));
  }

 private:
  struct Inputs {
    Tensor q, k, v;  // [tokens, heads, head_dim]
  };
  Inputs project(const Tensor& x) const {
    const auto columns = ops::split_columns(qkv_proj_->forward(x), {d_model_, d_model_, d_model_});
    const auto heads = [this](const Tensor& t) { return t.unflatten(1, {config_.heads, head_dim_}); };
    return {heads(columns[0]), heads(columns[1]), heads(columns[2])};
  }

  Tensor output(const Tensor& x, const std::vector<Tensor>& outputs) const {
    const Tensor y = ops::join(outputs, {x.size(0), config_.heads, head_dim_}, x.options());
    return out_proj_->forward(y.flatten(1).to(x.scalar_type()));
  }

  // The kept positions below `end`, and their indices in kept_positions_.
  struct KeptPositions {
    Tensor entries, positions;
  };
  KeptPositions find_kept(int64_t end, torch::Device device) const {
    const std::vector<int64_t>& kept = kept_positions_;
    const auto count = std::lower_bound(kept.begin(), kept.end(), end) - kept.begin();
    const auto options = torch::dtype(torch::kInt64).device(device);
    return {torch::arange(static_cast<int64_t>(count), options),
            runtime::to_device(torch::tensor(std::vector<int64_t>(kept.begin(), kept.begin() + count), torch::kInt64), device)};
  }

  // Writes the keys and values of those of the rows' tokens that are at kept positions.
  void store_kept(MixerState& state, const Inputs& in, const Pass& pass) const {
    std::vector<int64_t> written, tokens;
    const std::vector<int64_t>& kept = kept_positions_;
    const auto capacity = static_cast<int64_t>(kept.size());
    for (int64_t row = 0; row < pass.rows().rows(); ++row) {
      const int64_t seen = pass.seen_on_host()[row];
      for (auto at = std::lower_bound(kept.begin(), kept.end(), seen); at != kept.end() && *at < seen + pass.rows().length(row); ++at) {
        written.push_back(pass.slots_on_host()[row] * capacity + (at - kept.begin()));
        tokens.push_back(pass.rows().starts()[row] + *at - seen);
      }
    }
    if (written.empty()) return;
    const auto index = [&](const std::vector<int64_t>& values) {
      return runtime::to_device(torch::tensor(values, torch::kInt64), in.k.device());
    };
    const Tensor places = index(written), fresh = index(tokens);
    for (const auto& [name, values] : {std::pair("kept_k", in.k), std::pair("kept_v", in.v)}) {
      Tensor& stored = state[name];
      Tensor flat = stored.flatten(0, 1);
      ops::write_rows(flat, places, values.index_select(0, fresh));
      if (!flat.is_alias_of(stored)) stored = flat.view_as(stored);
    }
  }

  // Whether queries at positions [n] attend to keys at positions [m]: bool [n, m].
  Tensor attention_mask(const Tensor& queries, const Tensor& keys) const {
    const int64_t last = config_.l_max - 1;
    const Tensor distance = queries.unsqueeze(1) - keys;
    const Tensor random = open_->value().index_select(0, queries.clamp_max(last)).index_select(1, keys.clamp_max(last));
    const Tensor within = (queries <= last).unsqueeze(1).logical_and(keys <= last);
    const Tensor somewhere = (distance <= 3 * config_.block_size).logical_or(keys < 2 * config_.block_size);
    return somewhere.logical_or(random.logical_and(within)).logical_and(distance >= 0);
  }

  // q [rows, heads, n, head_dim], k and v [rows, heads, m, head_dim], `queries` [n] and `keys` [m] their positions. Returns the shape of q
  // in the accumulation type.
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& queries, const Tensor& keys) const {
    const at::ScalarType type = ops::sum_type(q);
    const double scale = 1 / std::sqrt(static_cast<double>(head_dim_));
    const Tensor scaled = q.to(type) * scale, k_transposed = k.to(type).transpose(2, 3), values = v.to(type);
    std::vector<Tensor> outputs;
    for (int64_t at = 0; at < q.size(2); at += kBigbirdPiece) {
      const int64_t count = std::min(kBigbirdPiece, q.size(2) - at);
      const Tensor hidden = attention_mask(queries.narrow(0, at, count), keys).logical_not();
      const Tensor scores = torch::matmul(scaled.narrow(2, at, count), k_transposed);
      outputs.push_back(torch::matmul(scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()).softmax(-1), values));
    }
    return torch::cat(outputs, 2);
  }

  BigbirdConfig config_;
  int64_t d_model_, head_dim_ = 0;
  std::shared_ptr<FixedTensor> open_;
  std::vector<int64_t> kept_positions_;  // RandomPlaces::kept
  std::shared_ptr<Projection> qkv_proj_, out_proj_;
};

}  // namespace

BASED_DEFINE_MIXER(bigbird, Bigbird, BigbirdConfig,
                   "softmax attention over a window, the beginning of the sequence and a few random places")

}  // namespace based
