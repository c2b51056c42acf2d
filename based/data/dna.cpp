#include "based/data/dna.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/json.h"
#include "based/core/new_folder.h"
#include "based/core/utf8.h"

namespace based {
namespace {

constexpr std::array kDnaNames{"[CLS]", "[SEP]", "[BOS]", "[MASK]", "[PAD]", "[RESERVED]", "[UNK]", "A", "C", "G", "T", "N"};
constexpr size_t kDnaSpecials = 7;
constexpr uint64_t kMostDnaFileBytes = 1 << 16;  // a larger tokenizer.json is another tokenizer's

Vocabulary dna_vocabulary() {
  Vocabulary vocabulary;
  vocabulary.tokens.assign(kDnaNames.begin(), kDnaNames.end());
  for (size_t id = 0; id < kDnaSpecials; ++id) vocabulary.specials.push_back(static_cast<int32_t>(id));
  return vocabulary;
}

int32_t id_of_letter(char letter) {
  switch (letter) {
    case 'A': return kDnaA;
    case 'C': return kDnaC;
    case 'G': return kDnaG;
    case 'T': return kDnaT;
    case 'N': return kDnaN;
    default: return kDnaUnknown;
  }
}

char upper_letter(char letter) { return letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter; }

char complement(char letter) {
  constexpr std::string_view from = "ACGTacgt", to = "TGCAtgca";
  const size_t at = from.find(letter);
  return at == std::string_view::npos ? letter : to[at];
}

int32_t complement(int32_t id) { return id >= kDnaA && id <= kDnaT ? kDnaA + kDnaT - id : id; }

Json dna_tokenizer_json() {
  Json added = Json::array(), upper = Json::array(), vocab = Json::object();
  for (size_t id = 0; id < kDnaNames.size(); ++id) {
    vocab[kDnaNames[id]] = id;
    if (id >= kDnaSpecials) {
      const std::string name = kDnaNames[id], lower(1, static_cast<char>(name[0] - 'A' + 'a'));
      upper.push_back({{"type", "Replace"}, {"pattern", {{"String", lower}}}, {"content", name}});
      continue;
    }
    added.push_back({{"id", id},
                     {"content", kDnaNames[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", upper}}},
          {"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "[\\s\\S]"}}}, {"behavior", "Isolated"}, {"invert", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "Fuse"}}},
          {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", kDnaNames[kDnaUnknown]}}}};
}

}  // namespace

DnaTokenizer::DnaTokenizer() : Tokenizer(dna_vocabulary()) {}

void DnaTokenizer::encode_text(std::string_view text, std::vector<int32_t>& ids) const {
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    ids.push_back(id_of_letter(upper_letter(*at)));
    at += utf8_at(at, end).size;
  }
}

void DnaTokenizer::save(const std::string& folder) const {
  MadeFolder made(folder);
  write_file_atomic(path_in(folder, "tokenizer.json"), dump_json(dna_tokenizer_json(), 2) + "\n");
  for (const char* name : {"vocab.json", "merges.txt"}) remove_file(path_in(folder, name));
  made.keep();
}

bool holds_dna_tokenizer(const std::string& folder) {
  const std::string path = path_in(folder, "tokenizer.json");
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || std::filesystem::file_size(path, error) > kMostDnaFileBytes) return false;
  return parse_json(read_regular_file(path, kMostDnaFileBytes), path) == dna_tokenizer_json();
}

uint64_t dna_tokenizer_hash() {
  static const uint64_t hash = DnaTokenizer().hash();
  return hash;
}

std::string reverse_complement(std::string_view letters) {
  std::string reversed(letters.rbegin(), letters.rend());
  for (char& letter : reversed) letter = complement(letter);
  return reversed;
}

void reverse_complement_ids(std::span<int32_t> row) {
  if (!row.empty() && row.back() == kDnaSep) row = row.first(row.size() - 1);
  const auto first = std::find_if(row.begin(), row.end(), [](int32_t id) { return id != kDnaPad; });
  std::reverse(first, row.end());
  std::for_each(first, row.end(), [](int32_t& id) { id = complement(id); });
}

std::vector<int32_t> dna_row(std::string_view letters, int64_t length) {
  BASED_ASSERT(length >= 1);
  letters = letters.substr(0, static_cast<size_t>(length));
  std::vector<int32_t> row(static_cast<size_t>(length) - letters.size(), kDnaPad);
  for (const char letter : letters) row.push_back(id_of_letter(upper_letter(letter)));
  row.push_back(kDnaSep);
  return row;
}

std::vector<int32_t> hyenadna_row(std::string_view letters, int64_t length) {
  BASED_ASSERT(length >= 1);
  letters = letters.substr(0, static_cast<size_t>(length) - 1);
  std::vector<int32_t> row(static_cast<size_t>(length) - 1 - letters.size(), kDnaPad);
  for (const char letter : letters) row.push_back(id_of_letter(letter));
  row.push_back(kDnaSep);
  return row;
}

bool is_dna_tokenizer(const Tokenizer& tokenizer) { return tokenizer.hash() == dna_tokenizer_hash(); }

void hide_dna_gaps(std::span<int32_t> row) { std::replace(row.begin(), row.end(), int32_t{kDnaN}, int32_t{kDnaPad}); }

}  // namespace based
