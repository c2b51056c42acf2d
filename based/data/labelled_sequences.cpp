#include "based/data/labelled_sequences.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/hash.h"
#include "based/core/text.h"
#include "based/data/dna.h"
#include "based/data/documents.h"

namespace based {
namespace {

constexpr uint64_t kMostCsvBytes = 1 << 28;

std::string_view without_space(std::string_view text) {
  constexpr std::string_view space = " \t\r\n";
  const size_t first = text.find_first_not_of(space);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(space) - first + 1);
}

void check_letters(std::string_view letters, const std::string& place) {
  if (letters.empty()) throw Error(place + ": sequence: is empty");
  for (const char& c : letters) {
    const bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '*' || c == '-';
    if (!letter) throw Error(place + ": sequence: " + in_quotes(std::string_view(&c, 1)) + " is no letter of a sequence");
  }
}

std::vector<std::string_view> fields_of(std::string_view line, const std::string& place) {
  if (line.find('"') != std::string_view::npos) throw Error(place + ": quotes are not read; the fields must have none");
  std::vector<std::string_view> fields;
  for (size_t at = 0; at <= line.size();) {
    const size_t stop = std::min(line.find(',', at), line.size());
    fields.push_back(without_space(line.substr(at, stop - at)));
    at = stop + 1;
  }
  return fields;
}

size_t column_of(const std::vector<std::string_view>& header, const char* name, const std::string& place) {
  const auto found = std::find(header.begin(), header.end(), name);
  if (found == header.end()) throw Error(place + ": " + name + ": the first line must name this column (sequence,label)");
  return static_cast<size_t>(found - header.begin());
}

std::vector<LabelledSequence> read_csv(const std::string& path) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  std::string text = read_regular_file(path, kMostCsvBytes);
  if (text.starts_with(byte_order_mark)) text.erase(0, byte_order_mark.size());
  std::vector<LabelledSequence> sequences;
  std::vector<std::string_view> header;
  size_t sequence = 0, label = 0;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t stop = std::min(text.find('\n', at), text.size());
    const std::string_view line = without_space(std::string_view(text).substr(at, stop - at));
    at = stop + 1;
    const std::string place = path + ":" + std::to_string(++number);
    if (number == 1) {
      header = fields_of(line, place);
      sequence = column_of(header, "sequence", place);
      label = column_of(header, "label", place);
      continue;
    }
    if (line.empty()) continue;
    const std::vector<std::string_view> fields = fields_of(line, place);
    if (fields.size() != header.size())
      throw Error(place + ": has " + std::to_string(fields.size()) + " fields, the first line " + std::to_string(header.size()));
    check_letters(fields[sequence], place);
    if (fields[label].empty()) throw Error(place + ": label: is empty");
    sequences.push_back({std::string(fields[sequence]), std::string(fields[label]), place});
  }
  return sequences;
}

std::vector<LabelledSequence> read_class_folders(const std::string& path) {
  std::vector<LabelledSequence> sequences;
  for (const std::string& label : names_in(path)) {
    const std::string folder = path_in(path, label);
    if (!is_folder(folder)) continue;
    const size_t before = sequences.size();
    for (const std::string& name : names_in(folder)) {
      read_named_documents(path_in(folder, name), TextFormat::by_name, [&](std::string_view document, const std::string& place) {
        const std::string_view letters = without_space(document);
        check_letters(letters, place);
        sequences.push_back({std::string(letters), label, place});
      });
    }
    if (sequences.size() == before) throw Error(folder + ": the class has no sequences");
  }
  return sequences;
}

}  // namespace

std::vector<LabelledSequence> read_labelled_sequences(const std::string& path) {
  std::vector<LabelledSequence> sequences = is_folder(path) ? read_class_folders(path) : read_csv(path);
  if (sequences.empty())
    throw Error(path +
                ": has no sequences; it must be a CSV file with the columns sequence and label, or a folder with a folder for each "
                "class");
  return sequences;
}

std::vector<std::string> class_names(const std::vector<LabelledSequence>& sequences, const std::string& path) {
  std::set<std::string> names;
  for (const LabelledSequence& each : sequences) names.insert(each.label);
  if (names.size() < 2) throw Error(path + ": label: all sequences have the label " + in_quotes(*names.begin()) + "; two are needed");
  return {names.begin(), names.end()};
}

LabelledTokens::LabelledTokens(const std::vector<LabelledSequence>& sequences, const std::vector<std::string>& classes,
                               const Tokenizer& tokenizer, int64_t most) {
  const bool dna = is_dna_tokenizer(tokenizer);
  for (const LabelledSequence& each : sequences) {
    const auto found = std::lower_bound(classes.begin(), classes.end(), each.label);
    if (found == classes.end() || *found != each.label)
      throw Error(each.place + ": label: " + in_quotes(each.label) + " is no class of the training set");
    tokenizer.encode_text(each.letters, tokens_);
    if (dna) hide_dna_gaps(std::span(tokens_).subspan(static_cast<size_t>(starts_.back())));
    const int64_t length = tokens() - starts_.back();
    if (most > 0 && length > most)
      throw Error(each.place + ": sequence: has " + std::to_string(length) + " tokens, the model at most " + std::to_string(most));
    starts_.push_back(tokens());
    labels_.push_back(found - classes.begin());
  }
}

std::span<const int32_t> LabelledTokens::sequence(int64_t index) const {
  const int64_t start = starts_[static_cast<size_t>(index)], end = starts_[static_cast<size_t>(index) + 1];
  return std::span(tokens_).subspan(static_cast<size_t>(start), static_cast<size_t>(end - start));
}

uint64_t LabelledTokens::hash() const {
  const uint64_t parts[] = {xxh3_64(std::as_bytes(std::span(tokens_))), xxh3_64(std::as_bytes(std::span(starts_))),
                            xxh3_64(std::as_bytes(std::span(labels_)))};
  return xxh3_64(std::as_bytes(std::span(parts)));
}

}  // namespace based
