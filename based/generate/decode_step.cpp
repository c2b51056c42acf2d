#include "based/generate/decode_step.h"

#include <algorithm>
#include <limits>

#include "based/core/log.h"
#include "based/ops/linear/linear.h"
#include "based/ops/sampling/top_tokens.h"
#include "based/runtime/profile.h"

namespace based {
namespace {

// Log-probability of `token` under the softmax of the first `columns` columns, fp32 [rows]. The other columns, which are padding, are not
// cut off but set to −inf: on a GPU the order of a row's sum depends on the alignment of the row's begin, which is the same for rows of
// padded length. On the CPU, ATen splits the sum of a single row over its threads, so that its bits would differ from those among other
// rows.
Tensor log_probability_of(const Tensor& padded, int64_t columns, const Tensor& token) {
  const int64_t rows = padded.size(0);
  const bool single = rows == 1 && padded.device().is_cpu();
  const Tensor wide =
      (single ? padded.expand({2, -1}) : padded).to(torch::kFloat, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  wide.narrow(1, columns, wide.size(1) - columns).fill_(-std::numeric_limits<float>::infinity());
  return wide.narrow(0, 0, rows).gather(1, token.clamp_min(0).unsqueeze(1)).squeeze(1) - wide.logsumexp(1).narrow(0, 0, rows);
}

}  // namespace

Slots DecodeStep::on_device(const std::vector<int64_t>& slots) const {
  return runtime::to_device(torch::tensor(slots, torch::kInt64), model_.device());
}

int64_t DecodeStep::width(int64_t slots, const DecodeOptions& options, torch::Device device) {
  if (!options.invariant || options.fixed_rows || device.is_cpu()) return slots;
  return (slots + invariant_width - 1) / invariant_width * invariant_width;
}

DecodeStep::DecodeStep(LanguageModel& model, ModelState& state, const DecodeOptions& options)
    : model_(model),
      state_(state),
      decode_(options),
      adjustments_(state.slots(), model.config().vocab_size, model.device()),
      top_counts_(static_cast<size_t>(state.slots())) {
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
  if (options.fixed_rows)
    use_fixed_rows();
  else if (options.steps != Steps::plain && runtime::recorder_of(model.device().type()) != nullptr)
    record_all();
}

void DecodeStep::use_fixed_rows() {
  const auto draw_rows = [this](const Tensor& padded, const Tensor& tokens, const ops::SampleOptions& options, const Tensor& drafts,
                                const Tensor& seen_after) {
    const runtime::DeviceRange range(ProfileLevel::phases, "sample", model_.device(), {{"rows", padded.size(0)}});
    ops::sample_tokens_(tokens, sampled_columns(padded), options, drafts, seen_after);
  };
  SequenceStep::Parts parts{model_, state_, token_, log_probability_, options_, draw_rows, {}, decode_.one_row_steps};
  if (log_probability_.defined())
    parts.log_probabilities = [this](const Tensor& padded, const Tensor& tokens) { return log_probability_of(padded, columns(), tokens); };
  sequence_step_ = std::make_unique<SequenceStep>(std::move(parts));
  if (decode_.steps == Steps::plain || runtime::recorder_of(model_.device().type()) == nullptr) return;
  std::string warning;  // about the last attempt that failed
  const auto record_programs = [&] {
    try {
      return sequence_step_->record_programs();
    } catch (const Error&) {  // the next attempt says why
      return false;
    }
  };
  const auto record = [&](std::optional<decode::Fusion> fusion, const char* consequence) {
    try {
      sequence_step_->record(fusion);
      return true;
    } catch (const Error& error) {
      warning = consequence + std::string(error.what());
      return false;
    }
  };
  const bool fused = decode_.steps == Steps::fused && ((!decode_.invariant && record_programs()) ||
                                                       record(decode::Fusion::layers, "decoding: layers of a step stay by themselves: ") ||
                                                       record(decode::Fusion::none, "decoding: kernels of a step read nothing early: "));
  if (!fused) record({}, "decoding: steps are not recorded and slower: ");
  if (!warning.empty()) log_warning(warning);
  state_.zero(all_slots_);
  token_.zero_();
}

// Records one step of all slots, or for invariant steps one for each `invariant_width` slots, so that the kernels are the same for any
// number of slots.
bool DecodeStep::try_recording(bool fused, std::string& reason) {
  const int64_t slots = state_.slots(), at_once = decode_.invariant ? invariant_width : slots;
  logits_.assign(static_cast<size_t>((slots + at_once - 1) / at_once), {});
  try {
    for (int64_t first = 0; first < slots; first += at_once) {
      const Slots some = all_slots_.narrow(0, first, std::min(at_once, slots - first));
      Tensor& logits = logits_.at(static_cast<size_t>(first / at_once));  // keeps the recording from using their memory again
      const auto body = [this, some, &logits] { logits = step(some.size(0) == all_slots_.size(0) ? Slots() : some); };
      recordings_.push_back(fused ? decode::record_step(model_.device(), body, {/*defers=*/!decode_.invariant})
                                  : decode::RecordedStep{nullptr, runtime::record(model_.device(), body)});
    }
    return true;
  } catch (const Error& error) {
    recordings_.clear();
    logits_.clear();
    reason = error.what();
    return false;
  }
}

void DecodeStep::record_all() {
  std::string warning;  // about the last attempt that failed
  const auto record = [&](bool fused, const char* consequence) {
    std::string reason;
    if (try_recording(fused, reason)) return true;
    warning = consequence + reason;
    return false;
  };
  const bool fused = decode_.steps == Steps::fused && record(true, "decoding: kernels of a step stay by themselves: ");
  if (!fused) record(false, "decoding: steps are not recorded and slower: ");
  if (!warning.empty()) log_warning(warning);
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

int64_t DecodeStep::sum_pending(int64_t (decode::PendingTokens::*bytes)() const) const {
  int64_t sum = 0;
  for (const auto& pending : pending_) sum += (*pending.*bytes)();
  return sum;
}

int64_t DecodeStep::pending_bytes() const { return sum_pending(&decode::PendingTokens::bytes); }
int64_t DecodeStep::rounded_bytes() const { return sum_pending(&decode::PendingTokens::rounded_bytes); }
int64_t DecodeStep::replaced_bytes() const { return sum_pending(&decode::PendingTokens::replaced_bytes); }

void DecodeStep::forget_pending(const std::vector<int64_t>& slots) {
  if (pending_.empty()) return;
  const Slots index = on_device(slots);
  for (const auto& pending : pending_) pending->forget(index);
}

Tensor DecodeStep::sampled_columns(const Tensor& padded) const {
  const Tensor logits = padded.narrow(1, 0, model_.config().vocab_size);
  return logits.scalar_type() == torch::kDouble ? logits.to(torch::kFloat) : logits;
}

void DecodeStep::draw(const Tensor& padded, Tensor token, const ops::SampleOptions& options, Tensor log_probability) {
  const runtime::DeviceRange range(ProfileLevel::phases, "sample", model_.device(), {{"rows", padded.size(0)}});
  ops::sample_(token, sampled_columns(padded), options);
  if (log_probability.defined()) log_probability.copy_(log_probability_of(padded, columns(), token));
}

Tensor DecodeStep::sample(const Slots& slots, Tensor token, ops::SampleOptions options, Tensor log_probability) {
  Tensor padded = model_.logits(model_.step(token, state_, slots));
  if (!options.position.defined()) options.position = state_.position().index_select(0, slots);  // the step has advanced it
  draw(padded, token, options, log_probability);
  return padded;
}

// The options of these slots, without their positions.
ops::SampleOptions DecodeStep::options_of(const Slots& slots) const {
  const auto select = [&](const Tensor& all) { return all.index_select(0, slots); };
  return {{},
          select(options_.seed),
          select(options_.top_k),
          select(options_.temperature),
          select(options_.top_p),
          select(options_.min_p),
          select(options_.penalty),
          select(options_.seen)};
}

Tensor DecodeStep::step(const Slots& slots) {
  if (!slots.defined()) return sample(all_slots_, token_, options_, log_probability_);
  const ops::SampleOptions options = options_of(slots);
  const Tensor token = token_.index_select(0, slots);
  const Tensor log_probability = log_probability_.defined() ? log_probability_.index_select(0, slots) : Tensor();
  const Tensor padded = sample(slots, token, options, log_probability);
  store(slots, token, options.seen, log_probability);
  return padded;
}

void DecodeStep::store(const Slots& slots, const Tensor& token, const Tensor& seen, const Tensor& log_probability) {
  token_.index_copy_(0, slots, token);
  options_.seen.index_copy_(0, slots, seen);
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

void DecodeStep::run(const std::vector<int64_t>& slots, bool one_row) {
  const Rows adjusted = rows_where(slots, [&](int64_t slot) { return adjustments_.adjusts(slot); });
  const Tensor seen = adjusted.slots.empty() ? Tensor() : options_.seen.index_select(0, on_device(adjusted.slots));
  roll_backs_.clear();
  run_parts(slots, one_row);
  if (!adjusted.slots.empty()) draw_adjusted(adjusted, seen, state_.position().index_select(0, on_device(adjusted.slots)));
  find_top(rows_where(slots, [&](int64_t slot) { return top_counts_[static_cast<size_t>(slot)] > 0; }));
  if (recordings_.empty()) logits_.clear();
}

void DecodeStep::run_parts(const std::vector<int64_t>& slots, bool one_row) {
  BASED_ASSERT(!one_row || decode_.one_row_steps);
  if (sequence_step_ != nullptr) {
    one_row ? sequence_step_->run_one_row() : sequence_step_->run({});
    return take_row(0);
  }
  if (!recordings_.empty()) {
    for (const auto& recording : recordings_) recording.replay->run();
    return;
  }
  if (steps_all()) {
    for (int64_t first = 0; first < state_.slots(); first += invariant_width)
      logits_.push_back(step(all_slots_.narrow(0, first, invariant_width)));
    return;
  }
  const auto count = static_cast<int64_t>(slots.size());
  const int64_t at_once = decode_.invariant ? ops::kBatchInvariantRows : count;
  if (count == state_.slots() && count <= at_once) {
    logits_.push_back(step({}));
    return;
  }
  const Slots all = on_device(slots);
  for (int64_t first = 0; first < count; first += at_once) logits_.push_back(step(all.narrow(0, first, std::min(at_once, count - first))));
}

// --- sequences with adjusted logits or lists of likely tokens, whose part of a step is never recorded

void DecodeStep::set_adjustments(int64_t slot, const SequenceOptions& options, std::span<const int64_t> generated) {
  adjustments_.set(slot, options.sampling, generated);
  top_counts_[static_cast<size_t>(slot)] = std::min(options.top_log_probabilities, model_.config().vocab_size);
}

// [rows, padded_vocab] of the last step.
Tensor DecodeStep::logits_of(const Rows& rows) const {
  return (logits_.size() == 1 ? logits_[0] : torch::cat(logits_)).index_select(0, on_device(rows.rows));
}

// Log-probabilities of the slots' tokens, fp32. On a GPU the number of rows decides how a row's sum is split, so that for invariant steps
// it is always that of a step.
Tensor DecodeStep::log_probabilities_of(const Rows& rows) const {
  const auto count = static_cast<int64_t>(rows.slots.size());
  const int64_t block = decode_.invariant && !model_.device().is_cpu() ? invariant_width : count;
  Rows filled = rows;
  while (static_cast<int64_t>(filled.rows.size()) % block != 0) filled.slots.push_back(rows.slots[0]), filled.rows.push_back(rows.rows[0]);
  const Tensor padded = logits_of(filled), token = token_.index_select(0, on_device(filled.slots));
  std::vector<Tensor> blocks;
  for (int64_t first = 0; first < padded.size(0); first += block)
    blocks.push_back(log_probability_of(padded.narrow(0, first, block), columns(), token.narrow(0, first, block)));
  return torch::cat(blocks).narrow(0, 0, count);
}

// Draws the tokens of these slots again, from adjusted logits. `seen`: the slots' marks before the step, to which the step has added the
// tokens that it has drawn. `position`: the positions of the tokens.
void DecodeStep::draw_adjusted(const Rows& rows, const Tensor& seen, const Tensor& position) {
  const Slots index = on_device(rows.slots);
  ops::SampleOptions options = options_of(index);
  options.position = position;
  options.seen = seen;
  const Tensor adjusted = adjustments_.adjusted(sampled_columns(logits_of(rows)), index, options.penalty, seen),
               token = torch::empty_like(index);
  options.penalty = torch::ones_like(options.penalty);  // it has been applied
  const runtime::DeviceRange range(ProfileLevel::phases, "sample", model_.device(), {{"rows", index.size(0)}});
  ops::sample_(token, adjusted, options);
  token_.index_copy_(0, index, token);
  options_.seen.index_copy_(0, index, seen);
  adjustments_.count(index, token);
  if (log_probability_.defined()) log_probability_.index_copy_(0, index, log_probabilities_of(rows));
}

// Finds the most likely tokens of these slots in the model's logits. The log-probability of the slot's own token is added to differences
// of logits, so that the same token has the same number wherever it is reported.
void DecodeStep::find_top(const Rows& rows) {
  top_.reset();
  if (rows.slots.empty()) return;
  int64_t most = 0;
  for (const int64_t slot : rows.slots) most = std::max(most, top_counts_[static_cast<size_t>(slot)]);
  const Slots index = on_device(rows.slots);
  const Tensor own = log_probability_.defined() ? log_probability_.index_select(0, index) : log_probabilities_of(rows);
  const Tensor token = token_.index_select(0, index).clamp_min(0);
  const auto [ids, margins] = ops::top_tokens(logits_of(rows).narrow(1, 0, columns()), token, most);
  const Tensor column = own.unsqueeze(1);
  top_ = {rows.slots, ids, torch::cat({column, column + margins.to(torch::kFloat)}, 1)};
}

std::map<int64_t, DecodeStep::TopTokens> DecodeStep::finish_top(TopAtHost& copy) const {
  std::map<int64_t, TopTokens> found;
  if (copy.slots.empty()) return found;
  const Tensor &ids = copy.ids->wait(), &log_probabilities = copy.log_probabilities->wait();
  const auto* id = ids.const_data_ptr<int64_t>();
  const auto* of_token = log_probabilities.const_data_ptr<float>();
  for (const int64_t slot : copy.slots) {
    TopTokens& top = found[slot];
    top.log_probability = of_token[0];
    const int64_t wanted = top_counts_[static_cast<size_t>(slot)];
    top.most_likely.reserve(static_cast<size_t>(wanted));
    for (int64_t i = 0; i < std::min(wanted, ids.size(1)); ++i) top.most_likely.push_back({id[i], of_token[1 + i]});
    id += ids.size(1), of_token += 1 + ids.size(1);
  }
  return found;
}

// ---

void DecodeStep::begin_readback() {
  BASED_ASSERT(readbacks_begun_ - readbacks_finished_ < kReadbacks);
  const size_t buffer = readbacks_begun_++ % kReadbacks;
  token_at_host_[buffer].begin(token_);
  if (log_probability_.defined()) log_probability_at_host_[buffer].begin(log_probability_);
  TopAtHost& top = top_at_host_[buffer];
  top = {};
  if (!top_) return;
  top = {top_->slots, runtime::ToHost(top_->ids), runtime::ToHost(top_->log_probabilities)};
  top.ids->begin(top_->ids), top.log_probabilities->begin(top_->log_probabilities);
}

DecodeStep::Readback DecodeStep::finish_readback() {
  BASED_ASSERT(readbacks_begun_ > readbacks_finished_);
  const size_t buffer = readbacks_finished_++ % kReadbacks;
  Readback result{token_at_host_[buffer].wait().const_data_ptr<int64_t>()};
  if (log_probability_.defined()) result.log_probabilities = log_probability_at_host_[buffer].wait().const_data_ptr<float>();
  result.top = finish_top(top_at_host_[buffer]);
  return result;
}

}  // namespace based
