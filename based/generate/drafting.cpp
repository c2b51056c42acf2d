#include "based/generate/drafting.h"

#include <algorithm>
#include <chrono>
#include <iterator>

namespace based {

void DraftLengths::Average::add(double next) {
  value = count < 2 ? next : 0.8 * value + 0.2 * next;
  ++count;
}

void DraftLengths::add_step(int64_t sequences, int64_t drafts, double seconds) {
  Average& plain = plain_[sequences];
  if (drafts == 0) return plain.add(seconds);
  row_.add(std::max(0.0, seconds - plain.value) / static_cast<double>(drafts));
}

void DraftLengths::add_drafting(int64_t drafts, double seconds) {
  if (drafts > 0) drafting_.add(seconds / static_cast<double>(drafts));
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
  constexpr int64_t shortest_pause = 8, longest_pause = 128;
  constexpr double margin = 1.25, assumed_row = 0.1;  // share of a plain step until a row has been measured
  const Average& plain = plain_[sequences];
  if (plain.count < 2) return 0;
  const double row = row_.count > 0 ? row_.value : assumed_row * plain.value;
  const double cost = margin * static_cast<double>(sequences) * (row + drafting_.value) / plain.value;
  History& history = histories_[sequence];
  const double chance = history.accepted / history.tried;
  int64_t length = 0;
  for (double both = chance; both > cost && length < kMostDraftTokens; both *= chance) ++length;
  if (length > 0) {
    history.pause = shortest_pause;
    return length;
  }
  if (history.plain_steps < history.pause) return 0;
  history.pause = std::min(2 * history.pause, longest_pause);
  return 1;
}

void Drafting::draft(std::vector<Drafter::Request>& requests) {
  std::vector<Drafter::Request> wanted;
  std::vector<size_t> places;
  for (size_t i = 0; i < requests.size(); ++i) {
    Drafter::Request request = requests[i];
    request.most = std::min(request.most, options_.most);
    if (options_.adapts) request.most = std::min(request.most, lengths_.next(request.sequence, static_cast<int64_t>(requests.size())));
    if (request.most <= 0) continue;
    wanted.push_back(std::move(request));
    places.push_back(i);
  }
  if (wanted.empty()) return;
  const auto start = std::chrono::steady_clock::now();
  options_.drafter->draft(wanted);
  int64_t drafts = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    BASED_ASSERT(static_cast<int64_t>(wanted[i].drafts.size()) <= wanted[i].most);
    drafts += static_cast<int64_t>(wanted[i].drafts.size());
    requests[places[i]].drafts = std::move(wanted[i].drafts);
  }
  lengths_.add_drafting(drafts, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
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
  lengths_.add_step(static_cast<int64_t>(requests.size()), drafts, seconds);
}

void Drafting::forget(int64_t sequence) {
  lengths_.forget(sequence);
  options_.drafter->forget(sequence);
}

}  // namespace based
