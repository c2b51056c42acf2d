#include "based/data/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <queue>
#include <set>

#include "based/core/text.h"
#include "based/core/utf8.h"
#include "based/data/pretokenizer.h"

namespace based {
namespace {

struct Word {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    const uint64_t both = static_cast<uint64_t>(pair.first) << 32 | static_cast<uint32_t>(pair.second);
    return static_cast<size_t>((both * 0x9e3779b97f4a7c15u) >> 16);
  }
};

// The number of occurrences of every adjacent pair, and the words that contain it. Updated as pairs are merged.
class PairCounts {
 public:
  explicit PairCounts(std::vector<Word> words) : words_(std::move(words)) {
    for (size_t w = 0; w < words_.size(); ++w) {
      const std::vector<int32_t>& symbols = words_[w].symbols;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) change({symbols[i], symbols[i + 1]}, words_[w].count, w);
    }
    for (const auto& [pair, seen] : pairs_) queue_.push({seen.count, pair});
  }

  // Removes the most frequent pair. Returns false if no pair occurs at least `min_frequency` times. Queue entries whose count has decreased
  // are reinserted with the current count.
  bool pop(int64_t min_frequency, Pair& pair) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const int64_t count = pairs_.at(top.pair).count;
      if (count != top.count) {
        queue_.push({count, top.pair});
      } else if (count < std::max<int64_t>(1, min_frequency)) {
        return false;
      } else {
        pair = top.pair;
        return true;
      }
    }
    return false;
  }

  // Replaces the pair by `merged` in every word that contains it.
  void merge(const Pair& pair, int32_t merged) {
    touched_.clear();
    const std::vector<size_t> words = std::move(pairs_.at(pair).words);
    for (const size_t w : words) merge_in_word(w, pair, merged);
    pairs_.at(pair).count = 0;
    // Only pairs that contain the merged token gain occurrences.
    for (const Pair& gained : touched_) {
      const int64_t count = pairs_.at(gained).count;
      if (count > 0) queue_.push({count, gained});
    }
  }

 private:
  struct Seen {
    int64_t count = 0;
    std::vector<size_t> words;  // added in ascending order; a word may no longer contain the pair
  };
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : other.pair < pair; }
  };

  void change(const Pair& pair, int64_t by, size_t word) {
    Seen& seen = pairs_[pair];
    seen.count += by;
    if (by > 0 && (seen.words.empty() || seen.words.back() != word)) seen.words.push_back(word);
  }

  void merge_in_word(size_t w, const Pair& pair, int32_t merged) {
    Word& word = words_[w];
    std::vector<int32_t>& symbols = word.symbols;
    size_t out = 0;
    for (size_t in = 0; in < symbols.size(); ++in) {
      if (in + 1 == symbols.size() || symbols[in] != pair.first || symbols[in + 1] != pair.second) {
        symbols[out++] = symbols[in];
        continue;
      }
      if (out > 0) {
        change({symbols[out - 1], pair.first}, -word.count, w);
        change({symbols[out - 1], merged}, word.count, w);
        touched_.insert({symbols[out - 1], merged});
      }
      if (in + 2 < symbols.size()) {
        change({pair.second, symbols[in + 2]}, -word.count, w);
        change({merged, symbols[in + 2]}, word.count, w);
        touched_.insert({merged, symbols[in + 2]});
      }
      symbols[out++] = merged;
      ++in;
    }
    symbols.resize(out);
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, Seen, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::set<Pair> touched_;
};

}  // namespace

BpeTrainer::BpeTrainer(BpeTrainConfig config) : config_(std::move(config)) {
  const int64_t least = 256 + static_cast<int64_t>(config_.specials.size());
  if (config_.vocab_size < least || config_.vocab_size > INT32_MAX) {
    throw UsageError("vocab_size must be from " + std::to_string(least) + " (the bytes and the special tokens) to 2147483647, got " +
                     std::to_string(config_.vocab_size));
  }
  if (config_.min_frequency < 1) throw UsageError("min_frequency must be at least 1, got " + std::to_string(config_.min_frequency));
  for (const std::string& special : config_.specials) {
    if (special.size() < 2 || special.size() > kMaxTokenBytes || !is_valid_utf8(special) || !special_names_.insert(special).second) {
      throw UsageError("specials: " + in_quotes(special) + " must be UTF-8 text of at least two bytes, given once");
    }
  }
  for (const unsigned char byte : byte_alphabet()) {
    const std::string name = token_name(std::string(1, static_cast<char>(byte)));
    if (special_names_.contains(name)) {
      throw UsageError("specials: " + in_quotes(name) + " is the name that the tokenizer's files give to byte " + std::to_string(byte) +
                       "; put something around it, for example <|" + name + "|>");
    }
  }
}

void BpeTrainer::add(std::string_view text) {
  for (size_t start = 0; start < text.size();) {
    const size_t newline = text.find('\n', start);
    const size_t stop = newline == std::string_view::npos ? text.size() : newline + 1;
    for (const char *at = text.data() + start, *end = text.data() + stop; at < end;) {
      const char* const next = pretoken_end(at, end);
      ++counts_[std::string(at, next)];
      at = next;
    }
    start = stop;
  }
}

Vocabulary BpeTrainer::train() const {
  Vocabulary vocabulary;
  vocabulary.tokens = config_.specials;
  for (size_t i = 0; i < config_.specials.size(); ++i) vocabulary.specials.push_back(static_cast<int32_t>(i));
  std::array<int32_t, 256> byte_id{};
  for (const unsigned char byte : byte_alphabet()) {
    byte_id[byte] = static_cast<int32_t>(vocabulary.tokens.size());
    vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  }
  std::vector<Word> words;
  words.reserve(counts_.size());
  for (const auto& [text, count] : counts_) {
    Word& word = words.emplace_back();
    word.count = count;
    for (const char c : text) word.symbols.push_back(byte_id[static_cast<unsigned char>(c)]);
  }
  PairCounts pairs(std::move(words));
  // Two different pairs may spell the same bytes. The second one then gets the existing id.
  std::unordered_map<std::string, int32_t> id_of;
  for (size_t id = config_.specials.size(); id < vocabulary.tokens.size(); ++id) id_of[vocabulary.tokens[id]] = static_cast<int32_t>(id);
  std::set<Pair> listed;
  Pair pair;
  while (static_cast<int64_t>(vocabulary.tokens.size()) < config_.vocab_size && pairs.pop(config_.min_frequency, pair)) {
    const std::string spelled = vocabulary.tokens[static_cast<size_t>(pair.first)] + vocabulary.tokens[static_cast<size_t>(pair.second)];
    if (special_names_.contains(token_name(spelled))) continue;  // in the files a name has only one id
    // A merged pair may occur again if other merges produced its parts. It is already in the list.
    if (!listed.insert(pair).second) {
      pairs.merge(pair, id_of.at(spelled));
      continue;
    }
    const auto [known, added] = id_of.emplace(spelled, static_cast<int32_t>(vocabulary.tokens.size()));
    if (added) vocabulary.tokens.push_back(spelled);
    vocabulary.merges.push_back({pair.first, pair.second, known->second});
    pairs.merge(pair, known->second);
  }
  return vocabulary;
}

}  // namespace based
