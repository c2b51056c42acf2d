// DNA as tokens, one id a base. The vocabulary and the rows are those of HyenaDNA and Caduceus.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "based/data/tokenizer.h"

namespace based {

enum DnaId : int32_t {
  kDnaCls = 0,
  kDnaSep = 1,  // also the end of a sequence
  kDnaBos = 2,
  kDnaMask = 3,
  kDnaPad = 4,  // never predicted
  kDnaReserved = 5,
  kDnaUnknown = 6,
  kDnaA = 7,
  kDnaC = 8,
  kDnaG = 9,
  kDnaT = 10,
  kDnaN = 11,
};

// Ids 0 .. 11. Letters count in upper case; any character but A, C, G, T and N is [UNK], so decode() does not return such characters.
class DnaTokenizer final : public Tokenizer {
 public:
  DnaTokenizer();
  void encode_text(std::string_view text, std::vector<int32_t>& ids) const override;
  std::optional<int32_t> end_of_text() const override { return kDnaSep; }
  // Writes tokenizer.json alone, which the Python `tokenizers` library can read, and removes the files of another tokenizer.
  void save(const std::string& folder) const override;
};

bool is_dna_tokenizer(const Tokenizer& tokenizer);

// Whether the folder's tokenizer.json is the one that DnaTokenizer::save writes.
bool holds_dna_tokenizer(const std::string& folder);
uint64_t dna_tokenizer_hash();

// Reversed, with A and T exchanged and C and G exchanged. The case and all other characters are kept.
std::string reverse_complement(std::string_view letters);
// The reverse complement of a row: [PAD] in front and a final [SEP] keep their places, the ids between are reversed and complemented.
void reverse_complement_ids(std::span<int32_t> row);

// A row of length + 1 ids as Caduceus makes it: the first `length` letters, preceded by [PAD] if there are fewer, [SEP] at the end. N keeps
// its id; hide_dna_gaps replaces it.
std::vector<int32_t> dna_row(std::string_view letters, int64_t length);
// A row of `length` ids as HyenaDNA makes it: the case is kept, so lower-case letters are [UNK]; [SEP] is the last id, and N is predicted.
std::vector<int32_t> hyenadna_row(std::string_view letters, int64_t length);
// Replaces N by [PAD]. A target of [PAD] has no label (data/loader.h), so runs of N are neither predicted nor counted.
void hide_dna_gaps(std::span<int32_t> row);

}  // namespace based
