// Sequences with class labels: GUE's CSV files and GenomicBenchmarks' folders, as tokens.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "based/data/tokenizer.h"

namespace based {

struct LabelledSequence {
  std::string letters;
  std::string label;  // the class's name
  std::string place;  // "<file>:<line>", or "<file>" of a whole file
};

// Reads a CSV file whose first line names the columns, among them `sequence` and `label`; or a folder with a folder for each class, whose
// files are read by documents.h (.txt: one sequence; .fa: one sequence a record). White space around a sequence is removed. Throws Error as
// "<file>:<line>: <field>: <reason>" for a missing column, a line with another number of columns, quotes, a sequence that is empty or has
// other characters than letters, '*' and '-', an empty label; and for a set or a class without sequences.
std::vector<LabelledSequence> read_labelled_sequences(const std::string& path);

// Class names in ascending order of their bytes; a class's number is its index. Throws Error that names `path` if there are fewer than two.
std::vector<std::string> class_names(const std::vector<LabelledSequence>& sequences, const std::string& path);

// A set as tokens.
class LabelledTokens {
 public:
  // Throws Error naming the place of a label that is no class, and of a sequence of more than `most` tokens (0: any number).
  LabelledTokens(const std::vector<LabelledSequence>& sequences, const std::vector<std::string>& classes, const Tokenizer& tokenizer,
                 int64_t most);

  int64_t size() const { return static_cast<int64_t>(labels_.size()); }
  int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }
  std::span<const int32_t> sequence(int64_t index) const;
  int64_t label(int64_t index) const { return labels_[static_cast<size_t>(index)]; }
  uint64_t hash() const;  // covers tokens, lengths and labels

 private:
  std::vector<int32_t> tokens_;
  std::vector<int64_t> starts_{0};  // [size + 1]
  std::vector<int64_t> labels_;
};

}  // namespace based
