// Intervals of sequences from BED files, and the rows of training data that the published DNA models cut from them.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "based/data/fasta.h"

namespace based {

struct BedInterval {
  std::string sequence;
  int64_t start = 0, end = 0;  // bases start … end − 1, from 0
  std::string split;           // train, valid or test
  int64_t line = 0;
};

// Reads a file of four columns, tab separated, without header: sequence, start, end, split. Throws Error as "<file>:<line>: <column>:
// <reason>".
std::vector<BedInterval> read_bed(const std::string& path);

// Throws Error as "<file>:<line>: <reason>" for an interval of a sequence that is not there, or beyond its end.
void check_intervals(const std::vector<BedInterval>& intervals, const std::vector<FastaSequence>& sequences, const std::string& path);

struct BaseRange {
  int64_t start = 0, end = 0;
};

// The rows of at most `length` bases of an interval of a sequence of `sequence` bases:
enum class RowForm {
  tiles,     // the interval in consecutive pieces; the last one is moved back to have `length` bases. No row leaves the interval.
  hyenadna,  // one row: the first bases of the interval; a shorter interval is widened evenly (one more on the right) and clipped
  caduceus,  // 2^20 bases from the interval's start, in pieces; a piece beyond the sequence's end is moved back
};
RowForm row_form(const std::string& name);  // throws UsageError
std::vector<BaseRange> row_ranges(const BedInterval& interval, int64_t length, int64_t sequence, RowForm form);
BaseRange hyenadna_range(BaseRange interval, int64_t length, int64_t sequence);
BaseRange caduceus_range(int64_t start, int64_t length, int64_t piece, int64_t sequence);

struct DnaRowOptions {
  std::string split = "train";
  int64_t length = 1024;
  RowForm form = RowForm::tiles;
};

struct DnaRowReport {
  int64_t intervals = 0, rows = 0, bases = 0;
  int64_t other_split = 0;  // rows left out, because they reach into an interval of another split
};

// Writes the rows of a split's intervals as token shards: a document is a row (dna_row), so it has length + 1 ids. Rows that overlap an
// interval of another split are left out. Throws Error, and leaves no shards, if the split has no interval or the BED file does not fit the
// sequences.
DnaRowReport pack_dna_rows(const std::vector<FastaSequence>& sequences, const std::string& bed, const DnaRowOptions& options,
                           const std::string& folder);

// Calls `visit` with the letters of each interval of a split, in the order of the file.
void for_each_interval(const std::vector<FastaSequence>& sequences, const std::string& bed, const std::string& split,
                       const std::function<void(const BedInterval&, std::string_view)>& visit);

}  // namespace based
