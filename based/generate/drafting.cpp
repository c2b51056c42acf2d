#include "based/generate/drafting.h"

#include <algorithm>
#include <chrono>
#include <iterator>

namespace based {
namespace {

constexpr double kLargestFactor = 3;  // by which a measured time may exceed its estimate
constexpr double kKeptWeight = 0.9;   // weight of earlier steps, at each step with drafts
constexpr double kAssumedEach = 0.1;  // share of a plain step, until a step with drafts has been measured

}  // namespace

void StepTimes::Average::add(double next) {
  value = count < 2 ? next : 0.8 * value + 0.2 * std::min(next, kLargestFactor * value);
  ++count;
}

void StepTimes::add(int64_t sequences, int64_t drafts, double seconds) {
  if (drafts == 0) return plain_[sequences].add(seconds);
  if (!knows_plain(sequences)) return;
  const double usual = plain(sequences);
  const double most = steps_ > 2 ? kLargestFactor * (usual + added(sequences, drafts)) : seconds;
  const double count = static_cast<double>(drafts), extra = std::max(0.0, std::min(seconds, most) - usual);
  const bool was_cold = ++drafted_ == 2 && 2 * extra < seconds_;
  const double kept = was_cold ? 0 : kKeptWeight;
  const auto update = [kept](double& sum, double term) { sum = kept * sum + term; };
  update(steps_, 1), update(drafts_, count), update(squares_, count * count);
  update(seconds_, extra), update(products_, count * extra);
}

bool StepTimes::knows_plain(int64_t sequences) const {
  const auto found = plain_.find(sequences);
  return found != plain_.end() && found->second.count >= 2;
}

// The least squares of the added times; if all drafts had about the same number of tokens, a line through the origin.
StepTimes::Line StepTimes::line() const {
  const double drafts = drafts_ / steps_, seconds = seconds_ / steps_, variance = squares_ / steps_ - drafts * drafts;
  constexpr double least_variance = 0.05;
  if (variance < least_variance) return {0, seconds / drafts};
  const double each = std::clamp((products_ / steps_ - drafts * seconds) / variance, 0.0, seconds / drafts);
  return {seconds - each * drafts, each};
}

double StepTimes::added(int64_t sequences, int64_t drafts) const {
  if (drafts == 0) return 0;
  if (steps_ == 0) return kAssumedEach * plain(sequences) * static_cast<double>(drafts);
  const Line times = line();
  return times.fixed + times.each * static_cast<double>(drafts);
}

void DraftLengths::add_step(int64_t sequences, int64_t drafts, double seconds) {
  times_.add(sequences, drafts, seconds);
  steps_with_drafts_ = drafts > 0 ? steps_with_drafts_ + 1 : 0;
}

void DraftLengths::add_verified(int64_t sequence, int64_t drafts, int64_t accepted) {
  History& history = histories_[sequence];
  if (drafts == 0) {
    ++history.plain_steps;
    return;
  }
  constexpr double kept = 0.7;
  history.accepted = kept * history.accepted + static_cast<double>(accepted);
  history.tried = kept * history.tried + static_cast<double>(std::min(drafts, accepted + 1));
  history.plain_steps = 0;
}

int64_t DraftLengths::next(int64_t sequence, int64_t sequences) {
  constexpr int64_t shortest_pause = 8, longest_pause = 128, most_steps_with_drafts = 64;
  constexpr double margin = 1.25, share_of_trials = 0.04;
  if (!times_.knows_plain(sequences) || steps_with_drafts_ >= most_steps_with_drafts) return 0;
  // The step's times, of which each sequence has an equal share; the other sequences are taken to have drafts of the same length.
  const double plain = times_.plain(sequences);
  History& history = histories_[sequence];
  const double chance = history.accepted / history.tried;
  int64_t best = 0;
  double tokens = 1, both = 1, highest = 1 / plain;
  for (int64_t length = 1; length <= kMostDraftTokens; ++length) {
    both *= chance;
    tokens += both;
    const double rate = tokens / (plain + margin * times_.added(sequences, sequences * length));
    if (rate > highest) best = length, highest = rate;
  }
  const auto cheap_pause = static_cast<int64_t>(times_.added(sequences, sequences) / plain / share_of_trials);
  const int64_t least_pause = times_.has_second() ? std::max(shortest_pause, cheap_pause) : shortest_pause;
  if (best > 0) {
    history.pause = least_pause;
    return best;
  }
  history.pause = std::max(history.pause, least_pause);
  if (history.plain_steps < history.pause) return 0;
  history.pause = std::max(least_pause, std::min(2 * history.pause, longest_pause));
  return 1;
}

bool Drafting::steps_one_row(int64_t sequence, const std::vector<int64_t>& tokens, int64_t in_flight) {
  if (!options_.by_repetition || in_flight >= TextRepetition::left_in_block(tokens.size())) return false;
  return !repetitions_[sequence].repeats(tokens);
}

int64_t Drafting::limit_of(const Drafter::Request& request, int64_t sequences) {
  int64_t most = std::min(request.most, options_.most);
  if (options_.by_repetition) most = std::min(most, TextRepetition::left_in_block(request.tokens->size()) - 1);
  return options_.adapts ? std::min(most, lengths_.next(request.sequence, sequences)) : most;
}

void Drafting::draft(std::vector<Drafter::Request>& requests) {
  std::vector<Drafter::Request> wanted;
  std::vector<size_t> places;
  drafting_seconds_ = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].most = limit_of(requests[i], static_cast<int64_t>(requests.size()));
    if (requests[i].most <= 0) continue;
    Drafter::Request request = requests[i];
    wanted.push_back(std::move(request));
    places.push_back(i);
  }
  if (wanted.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  options_.drafter->draft(wanted);
  for (size_t i = 0; i < wanted.size(); ++i) {
    BASED_ASSERT(static_cast<int64_t>(wanted[i].drafts.size()) <= wanted[i].most);
    requests[places[i]].drafts = std::move(wanted[i].drafts);
  }
  drafting_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Drafting::add_step(const std::vector<Drafter::Request>& requests, const std::vector<int64_t>& added, double seconds) {
  int64_t drafts = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (added[i] == 0) continue;
    const auto read = static_cast<int64_t>(requests[i].drafts.size());
    const int64_t accepted = added[i] - 1;  // the last token is the model's own
    lengths_.add_verified(requests[i].sequence, read, accepted);
    drafts += read;
    ++counts_.steps;
    counts_.tokens += added[i];
    counts_.accepted += accepted;
  }
  counts_.drafted += drafts;
  lengths_.add_step(static_cast<int64_t>(requests.size()), drafts, drafts > 0 ? seconds + drafting_seconds_ : seconds);
}

void Drafting::forget(int64_t sequence) {
  lengths_.forget(sequence);
  repetitions_.erase(sequence);
  options_.drafter->forget(sequence);
}

}  // namespace based
