// Sequences of FASTA files by their names, whole in memory, for intervals over them. (documents.h reads FASTA as a stream of documents.)
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "based/core/error.h"

namespace based {

struct FastaSequence {
  std::string name;     // the header's first word
  std::string letters;  // upper case
  std::string place;    // "<file>:<line>" of the header
};

// Reads all sequences of the files in order. Throws Error as "<file>:<line>: <reason>" for a line before the first header, a header without
// a name, a name that an earlier sequence has, a sequence without letters, and characters other than letters, '*' and '-'. The files must
// not be compressed.
std::vector<FastaSequence> read_fasta(const std::vector<std::string>& paths);

}  // namespace based
