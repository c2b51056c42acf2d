#include "based/mixers/kit/pass.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "based/core/error.h"

namespace based {
namespace {

const std::vector<int64_t>& on_host(const Tensor& numbers, std::optional<std::vector<int64_t>>& known) {
  if (!known) {
    const Tensor host = numbers.to(torch::kCPU).contiguous();
    const int64_t* first = host.const_data_ptr<int64_t>();
    known.emplace(first, first + host.numel());
  }
  return *known;
}

}  // namespace

Pass::Pass(std::optional<Sequences> rows, Slots slots, Tensor seen, const std::vector<int64_t>& round_rows, StateJournal* journal,
           int64_t padding)
    : rows_(std::move(rows)), slots_(std::move(slots)), seen_(std::move(seen)), journal_(journal), padding_(padding) {
  rounds_.reserve(round_rows.size());
  for (int64_t begin = 0; const int64_t count : round_rows) {
    BASED_ASSERT(count > 0 && (rounds_.empty() || count <= rounds_.back().rows));
    std::shared_ptr<const Pass> pass(new Pass(step(slots_.narrow(0, begin, count), seen_.narrow(0, begin, count))));
    rounds_.push_back({begin, count, std::move(pass)});
    begin += count;
  }
}

Pass::Pass(Sequences rows, ops::Draws draws) : Pass(std::optional(std::move(rows)), {}, {}) { draws_ = std::move(draws); }

Pass::Pass(Sequences rows, Slots slots, Tensor seen) : Pass(std::optional(std::move(rows)), std::move(slots), std::move(seen)) {
  BASED_ASSERT(slots_.size(0) == rows_->rows() && seen_.size(0) == rows_->rows());
}

Pass Pass::step(Slots slots, Tensor seen) {
  BASED_ASSERT(slots.size(0) == seen.size(0));
  return Pass(std::nullopt, std::move(slots), std::move(seen));
}

Pass Pass::step_rounds(Slots slots, Tensor seen, const std::vector<int64_t>& round_rows, StateJournal* journal, int64_t padding) {
  BASED_ASSERT(slots.size(0) == seen.size(0) && slots.size(0) == std::accumulate(round_rows.begin(), round_rows.end(), padding));
  return Pass(std::nullopt, std::move(slots), std::move(seen), round_rows, journal, padding);
}

const Sequences& Pass::rows() const {
  BASED_ASSERT(rows_.has_value());
  return *rows_;
}

Tensor Pass::positions() const {
  if (!rows_) return seen_;
  if (!seen_.defined()) return rows_->positions();
  if (!positions_.defined()) positions_ = rows_->positions(seen_);
  return positions_;
}

const ops::Draws& Pass::draws() const {
  if (draws_.step.defined()) return draws_;
  throw Error(
      "a model that trains with dropout needs to know what to draw from: give LanguageModel::loss or forward the run's seed and its step's "
      "number (ops::Draws), or call eval() where it does not train");
}

const std::vector<int64_t>& Pass::slots_on_host() const { return on_host(slots_, slots_on_host_); }
const std::vector<int64_t>& Pass::seen_on_host() const { return on_host(seen_, seen_on_host_); }

int64_t Pass::longest() const {
  int64_t most = 0;
  for (size_t row = 0; row < seen_on_host().size(); ++row)
    most = std::max(most, seen_on_host()[row] + (rows_ ? rows_->length(static_cast<int64_t>(row)) : 1));
  return most;
}

}  // namespace based
