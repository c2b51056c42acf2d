#include "based/data/bed.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>

#include "based/core/files.h"
#include "based/core/text.h"
#include "based/data/dna.h"
#include "based/data/shards.h"

namespace based {
namespace {

constexpr int64_t kCaduceusBases = int64_t{1} << 20;  // the part of a sequence that one interval stands for
constexpr uint64_t kMostBedBytes = 1 << 28;

std::vector<std::string_view> columns_of(std::string_view line) {
  std::vector<std::string_view> columns;
  for (size_t at = 0; at <= line.size();) {
    const size_t stop = std::min(line.find('\t', at), line.size());
    columns.push_back(line.substr(at, stop - at));
    at = stop + 1;
  }
  return columns;
}

int64_t parse_position(std::string_view text, const std::string& where) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    throw Error(where + ": must be a number of bases from 0, is " + in_quotes(text));
  return value;
}

BedInterval parse_interval(std::string_view line, int64_t number, const std::string& path) {
  const std::string where = path + ":" + std::to_string(number);
  const std::vector<std::string_view> columns = columns_of(line);
  if (columns.size() != 4) {
    throw Error(where + ": needs four columns with tabs between them (sequence, start, end, split), has " + std::to_string(columns.size()));
  }
  BedInterval interval{std::string(columns[0]), parse_position(columns[1], where + ": start"), parse_position(columns[2], where + ": end"),
                       std::string(columns[3]), number};
  if (interval.sequence.empty()) throw Error(where + ": sequence: is empty");
  if (interval.end <= interval.start)
    throw Error(where + ": end: must be above start, " + std::to_string(interval.start) + ", is " + std::to_string(interval.end));
  if (interval.split != "train" && interval.split != "valid" && interval.split != "test")
    throw Error(where + ": split: must be train, valid or test, is " + in_quotes(interval.split));
  return interval;
}

using SequencesByName = std::map<std::string_view, const FastaSequence*>;

SequencesByName by_name(const std::vector<FastaSequence>& sequences) {
  SequencesByName found;
  for (const FastaSequence& sequence : sequences) found.emplace(sequence.name, &sequence);
  return found;
}

// The intervals of other splits than one, by sequence. They may overlap one another.
class OtherSplits {
 public:
  OtherSplits(const std::vector<BedInterval>& intervals, const std::string& split) {
    for (const BedInterval& each : intervals)
      if (each.split != split) ranges_[each.sequence].push_back({each.start, each.end});
    for (auto& [name, ranges] : ranges_) {
      std::sort(ranges.begin(), ranges.end(), [](const BaseRange& a, const BaseRange& b) { return a.start < b.start; });
      for (size_t i = 1; i < ranges.size(); ++i) ranges[i].end = std::max(ranges[i].end, ranges[i - 1].end);
    }
  }

  bool overlap(const std::string& sequence, const BaseRange& range) const {
    const auto found = ranges_.find(sequence);
    if (found == ranges_.end()) return false;
    const auto after = std::lower_bound(found->second.begin(), found->second.end(), range.end,
                                        [](const BaseRange& one, int64_t end) { return one.start < end; });
    return after != found->second.begin() && std::prev(after)->end > range.start;
  }

 private:
  std::map<std::string, std::vector<BaseRange>> ranges_;  // ascending starts; an end is the largest up to there
};

}  // namespace

std::vector<BedInterval> read_bed(const std::string& path) {
  const std::string text = read_regular_file(path, kMostBedBytes);
  std::vector<BedInterval> intervals;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t stop = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, stop - at);
    at = stop + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) intervals.push_back(parse_interval(line, number, path));
  }
  if (intervals.empty()) throw Error(path + ": has no intervals");
  return intervals;
}

void check_intervals(const std::vector<BedInterval>& intervals, const std::vector<FastaSequence>& sequences, const std::string& path) {
  const SequencesByName known = by_name(sequences);
  for (const BedInterval& interval : intervals) {
    const std::string where = path + ":" + std::to_string(interval.line);
    const auto found = known.find(interval.sequence);
    if (found == known.end())
      throw Error(where + ": sequence: no FASTA file has " + in_quotes(interval.sequence) + "; the first sequence there is " +
                  in_quotes(sequences.empty() ? "" : sequences.front().name));
    const auto bases = static_cast<int64_t>(found->second->letters.size());
    if (interval.end > bases)
      throw Error(where + ": end: " + std::to_string(interval.end) + " is beyond the " + std::to_string(bases) + " bases of " +
                  in_quotes(interval.sequence) + " (" + found->second->place + ")");
  }
}

RowForm row_form(const std::string& name) {
  if (name == "tiles") return RowForm::tiles;
  if (name == "hyenadna") return RowForm::hyenadna;
  if (name == "caduceus") return RowForm::caduceus;
  throw UsageError("the form of the rows must be tiles, hyenadna or caduceus, got " + in_quotes(name));
}

BaseRange hyenadna_range(BaseRange interval, int64_t length, int64_t sequence) {
  const int64_t missing = std::max<int64_t>(0, length - (interval.end - interval.start));
  const int64_t start = std::max<int64_t>(0, interval.start - missing / 2);
  const int64_t end = std::min(sequence, interval.end + missing - missing / 2);
  return {start, std::min(end, start + length)};
}

BaseRange caduceus_range(int64_t start, int64_t length, int64_t piece, int64_t sequence) {
  const int64_t end = std::min(sequence, start + (piece + 1) * length);
  return {std::max<int64_t>(0, end - length), end};
}

std::vector<BaseRange> row_ranges(const BedInterval& interval, int64_t length, int64_t sequence, RowForm form) {
  if (form == RowForm::hyenadna) return {hyenadna_range({interval.start, interval.end}, length, sequence)};
  std::vector<BaseRange> ranges;
  if (form == RowForm::caduceus) {
    for (int64_t piece = 0; piece < kCaduceusBases / length; ++piece)
      ranges.push_back(caduceus_range(interval.start, length, piece, sequence));
    return ranges;
  }
  for (int64_t start = interval.start; start < interval.end; start += length) {
    const int64_t end = std::min(interval.end, start + length);
    ranges.push_back({std::max(interval.start, end - length), end});
  }
  return ranges;
}

DnaRowReport pack_dna_rows(const std::vector<FastaSequence>& sequences, const std::string& bed, const DnaRowOptions& options,
                           const std::string& folder) {
  if (options.length < 1 || options.length > kCaduceusBases)
    throw UsageError("the length of the rows must be from 1 to 2^20 bases, got " + std::to_string(options.length));
  const std::vector<BedInterval> intervals = read_bed(bed);
  check_intervals(intervals, sequences, bed);
  const SequencesByName known = by_name(sequences);
  const OtherSplits others(intervals, options.split);
  DnaRowReport report;
  ShardWriter writer(folder, DnaTokenizer());
  for (const BedInterval& interval : intervals) {
    if (interval.split != options.split) continue;
    ++report.intervals;
    const std::string_view letters = known.at(interval.sequence)->letters;
    for (const BaseRange& range : row_ranges(interval, options.length, static_cast<int64_t>(letters.size()), options.form)) {
      if (others.overlap(interval.sequence, range)) {
        ++report.other_split;
        continue;
      }
      writer.add_document(
          dna_row(letters.substr(static_cast<size_t>(range.start), static_cast<size_t>(range.end - range.start)), options.length));
      ++report.rows;
      report.bases += range.end - range.start;
    }
  }
  if (report.rows == 0)
    throw Error(bed + ": split: " + (report.intervals == 0 ? "no interval is in " : "every row reaches into another split than ") +
                in_quotes(options.split));
  writer.finish();
  return report;
}

void for_each_interval(const std::vector<FastaSequence>& sequences, const std::string& bed, const std::string& split,
                       const std::function<void(const BedInterval&, std::string_view)>& visit) {
  const std::vector<BedInterval> intervals = read_bed(bed);
  check_intervals(intervals, sequences, bed);
  const SequencesByName known = by_name(sequences);
  bool found = false;
  for (const BedInterval& interval : intervals) {
    if (interval.split != split) continue;
    found = true;
    visit(interval, std::string_view(known.at(interval.sequence)->letters)
                        .substr(static_cast<size_t>(interval.start), static_cast<size_t>(interval.end - interval.start)));
  }
  if (!found) throw Error(bed + ": split: no interval is in " + in_quotes(split));
}

}  // namespace based
