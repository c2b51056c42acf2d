#include "based/generate/decode_step.h"

#include <limits>

#include "based/core/log.h"
#include "based/ops/linear/linear.h"

namespace based {
namespace {

// Log-probability of `token` under the softmax of the first `vocab` columns, fp32 [rows]. The padding columns are not cut off but set to
// −inf: on a GPU the order of a row's sum depends on the alignment of the row's begin, which is the same for rows of padded length.
Tensor log_probability_of(const Tensor& padded, int64_t vocab, const Tensor& token) {
  const Tensor wide = padded.to(torch::kFloat, /*non_blocking=*/false, /*copy=*/true);
  wide.narrow(1, vocab, wide.size(1) - vocab).fill_(-std::numeric_limits<float>::infinity());
  return wide.gather(1, token.clamp_min(0).unsqueeze(1)).squeeze(1) - wide.logsumexp(1);
}

}  // namespace

Slots DecodeStep::on_device(const std::vector<int64_t>& slots) const {
  return runtime::to_device(torch::tensor(slots, torch::kInt64), model_.device());
}

int64_t DecodeStep::width(int64_t slots, const DecodeOptions& options, torch::Device device) {
  if (!options.invariant || device.is_cpu()) return slots;
  return (slots + invariant_width - 1) / invariant_width * invariant_width;
}

DecodeStep::DecodeStep(LanguageModel& model, ModelState& state, const DecodeOptions& options)
    : model_(model), state_(state), decode_(options) {
  const int64_t slots = state.slots();
  const auto ids = torch::dtype(torch::kInt64).device(model.device());
  const auto reals = torch::dtype(torch::kFloat).device(model.device());
  all_slots_ = torch::arange(slots, ids);
  token_ = torch::zeros({slots}, ids);
  if (options.log_probabilities) log_probability_ = torch::zeros({slots}, reals);
  options_ = {
      state_.position(),           torch::zeros({slots}, ids),
      torch::zeros({slots}, ids),  torch::zeros({slots}, reals),
      torch::ones({slots}, reals), torch::zeros({slots}, reals),
      torch::ones({slots}, reals), torch::zeros({slots, kernels::sample_seen_words(model.config().vocab_size)}, ids.dtype(torch::kInt))};
  for (size_t i = 0; i < kReadbacks; ++i) {
    token_at_host_.emplace_back(token_);
    if (log_probability_.defined()) log_probability_at_host_.emplace_back(log_probability_);
  }
  if (options.steps != Steps::plain && runtime::recorder_of(model.device().type()) != nullptr) record_all();
}

// Records one step of all slots, or for invariant steps one for each `invariant_width` slots, so that the kernels are the same for any
// number of slots.
bool DecodeStep::try_recording(bool fused, std::string& reason) {
  const int64_t slots = state_.slots(), at_once = decode_.invariant ? invariant_width : slots;
  try {
    for (int64_t first = 0; first < slots; first += at_once) {
      const Slots some = all_slots_.narrow(0, first, std::min(at_once, slots - first));
      const auto body = [this, some] { step(some.size(0) == all_slots_.size(0) ? Slots() : some); };
      recordings_.push_back(fused ? decode::record_step(model_.device(), body, {/*defers=*/!decode_.invariant})
                                  : decode::RecordedStep{nullptr, runtime::record(model_.device(), body)});
    }
    return true;
  } catch (const Error& error) {
    recordings_.clear();
    reason = error.what();
    return false;
  }
}

void DecodeStep::record_all() {
  std::string reason;
  const bool fused = decode_.steps == Steps::fused && try_recording(/*fused=*/true, reason);
  if (!fused && decode_.steps == Steps::fused) log_warning("decoding: kernels of a step stay by themselves: " + reason);
  if (!fused && !try_recording(/*fused=*/false, reason)) log_warning("decoding: steps are not recorded and slower: " + reason);
  for (const auto& recording : recordings_)
    if (recording.plan) pending_.insert(pending_.end(), recording.plan->pending().begin(), recording.plan->pending().end());
  state_.zero(all_slots_);
  token_.zero_();
}

void DecodeStep::flush(const std::vector<int64_t>& slots) {
  if (pending_.empty()) return;
  const Slots index = on_device(slots);
  for (const auto& pending : pending_) pending->flush(index);
}

int64_t DecodeStep::pending_bytes() const {
  int64_t sum = 0;
  for (const auto& pending : pending_) sum += pending->bytes();
  return sum;
}

void DecodeStep::forget_pending(const std::vector<int64_t>& slots) {
  if (pending_.empty()) return;
  const Slots index = on_device(slots);
  for (const auto& pending : pending_) pending->forget(index);
}

void DecodeStep::sample(const Slots& slots, Tensor token, ops::SampleOptions options, Tensor log_probability) {
  const Tensor padded = model_.logits(model_.step(token, state_, slots));
  Tensor logits = padded.narrow(1, 0, model_.config().vocab_size);
  if (!options.position.defined()) options.position = state_.position().index_select(0, slots);  // the step has advanced it
  if (logits.scalar_type() == torch::kDouble) logits = logits.to(torch::kFloat);                 // sampling has no fp64
  ops::sample_(token, logits, options);
  if (log_probability.defined()) log_probability.copy_(log_probability_of(padded, logits.size(1), token));
}

void DecodeStep::step(const Slots& slots) {
  if (!slots.defined()) return sample(all_slots_, token_, options_, log_probability_);
  const auto select = [&](const Tensor& all) { return all.defined() ? all.index_select(0, slots) : Tensor(); };
  const Tensor token = select(token_), log_probability = select(log_probability_);
  const ops::SampleOptions options{{},
                                   select(options_.seed),
                                   select(options_.top_k),
                                   select(options_.temperature),
                                   select(options_.top_p),
                                   select(options_.min_p),
                                   select(options_.penalty),
                                   select(options_.seen)};
  sample(slots, token, options, log_probability);
  token_.index_copy_(0, slots, token);
  options_.seen.index_copy_(0, slots, options.seen);
  if (log_probability.defined()) log_probability_.index_copy_(0, slots, log_probability);
}

void DecodeStep::set_sampling(const std::vector<int64_t>& slots, const std::vector<SamplingOptions>& options) {
  const Slots index = on_device(slots);
  const auto set = [&]<class T>(Tensor& all, auto SamplingOptions::*field, T) {
    std::vector<T> values;
    values.reserve(options.size());
    for (const SamplingOptions& one : options) values.push_back(static_cast<T>(one.*field));
    all.index_copy_(0, index, runtime::to_device(torch::tensor(values), model_.device()));
  };
  set(options_.seed, &SamplingOptions::seed, int64_t{});
  set(options_.top_k, &SamplingOptions::top_k, int64_t{});
  set(options_.temperature, &SamplingOptions::temperature, float{});
  set(options_.top_p, &SamplingOptions::top_p, float{});
  set(options_.min_p, &SamplingOptions::min_p, float{});
  set(options_.penalty, &SamplingOptions::repetition_penalty, float{});
}

void DecodeStep::load_last_tokens(const std::vector<int64_t>& slots, const std::vector<const std::vector<int64_t>*>& sequences) {
  const Slots index = on_device(slots);
  const Tensor seen = torch::zeros({static_cast<int64_t>(sequences.size()), options_.seen.size(1)}, torch::kInt);
  auto* row = reinterpret_cast<uint32_t*>(seen.mutable_data_ptr<int32_t>());
  std::vector<int64_t> last;
  for (const auto* tokens : sequences) {
    for (const int64_t id : *tokens) kernels::sample_set_seen(row, id);
    row += seen.size(1);
    last.push_back(tokens->back());
  }
  options_.seen.index_copy_(0, index, runtime::to_device(seen, model_.device()));
  token_.index_copy_(0, index, runtime::to_device(torch::tensor(last), model_.device()));
}

void DecodeStep::set_tokens(const std::vector<int64_t>& slots, const std::vector<int64_t>& tokens) {
  token_.index_copy_(0, on_device(slots), on_device(tokens));
}

void DecodeStep::run(const std::vector<int64_t>& slots) {
  if (!recordings_.empty()) {
    for (const auto& recording : recordings_) recording.replay->run();
    return;
  }
  if (steps_all()) {
    for (int64_t first = 0; first < state_.slots(); first += invariant_width) step(all_slots_.narrow(0, first, invariant_width));
    return;
  }
  const auto count = static_cast<int64_t>(slots.size());
  const int64_t at_once = decode_.invariant ? ops::kBatchInvariantRows : count;
  if (count == state_.slots() && count <= at_once) return step({});
  const Slots all = on_device(slots);
  for (int64_t first = 0; first < count; first += at_once) step(all.narrow(0, first, std::min(at_once, count - first)));
}

void DecodeStep::begin_readback() {
  BASED_ASSERT(readbacks_begun_ - readbacks_finished_ < kReadbacks);
  const size_t buffer = readbacks_begun_++ % kReadbacks;
  token_at_host_[buffer].begin(token_);
  if (log_probability_.defined()) log_probability_at_host_[buffer].begin(log_probability_);
}

DecodeStep::Readback DecodeStep::finish_readback() {
  BASED_ASSERT(readbacks_begun_ > readbacks_finished_);
  const size_t buffer = readbacks_finished_++ % kReadbacks;
  Readback result{token_at_host_[buffer].wait().const_data_ptr<int64_t>()};
  if (log_probability_.defined()) result.log_probabilities = log_probability_at_host_[buffer].wait().const_data_ptr<float>();
  return result;
}

}  // namespace based
