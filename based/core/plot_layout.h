// The layout of a plot, in points from the top left corner, shared by the SVG writer and the gnuplot script for the PNG.
#pragma once
#include <string>
#include <vector>

#include "based/core/plot.h"

namespace based::plot_detail {

inline constexpr double kWidth = 960, kHeight = 600;
inline constexpr double kTitleSize = 22, kTextSize = 15, kSmallSize = 12;
inline constexpr const char* kInk = "#222222";
inline constexpr const char* kGrey = "#6b6b6b";
inline constexpr const char* kGrid = "#e4e4e4";

inline constexpr double kKeyDistance = 12;
inline constexpr double kKeyLine = 6;  // half the length of the line in the key of a curve without markers
inline constexpr const char* kBackdrop = "#d4d4d4";

// Markers differ in shape too, for print without colour. By rank: ● ■ ▲ ◆ ▼, then the same shapes open, with dashed lines.
inline constexpr size_t kShapes = 5;
inline bool is_open(size_t rank) { return rank / kShapes % 2 == 1; }

const char* rank_colour(size_t rank);

struct Tick {
  double value = 0;
  std::string text;
};

struct Scale {
  double low = 0, high = 1;   // data values
  double begin = 0, end = 1;  // their positions in points
  bool log = false;
  std::vector<Tick> ticks;

  double operator()(double value) const;
};

enum class Anchor { start, middle, end };

struct SeriesLabel {
  double x = 0, y = 0;  // the position of the anchor, vertically in the middle of the text
  Anchor anchor = Anchor::start;
};

struct PlotLayout {
  double left = 0, right = 0, top = 0, bottom = 0;  // the plot area
  double title_size = kTitleSize;                   // smaller if the title would not fit
  Scale x, y;
  std::vector<PlotSeries> series;   // sorted by x, drawable points only
  std::vector<SeriesLabel> labels;  // one per series
  bool labels_at_end = false;       // if so, each label has its marker, or a piece of its line, kKeyDistance before it
  std::vector<size_t> ranks;        // one per series, for colour and shape; emphasised series come first
  std::vector<PlotNote> notes;      // the notes that have room
  std::vector<SeriesLabel> note_labels;
};

PlotLayout make_layout(const Plot& plot);
const char* label_colour(const PlotLayout& layout, size_t series);

bool draws_markers(const PlotSeries& series);   // false for curves of many points
std::string drawable(const std::string& text);  // replaces control characters by spaces and invalid UTF-8 by U+FFFD
std::string number_text(double value);          // the shortest digits that parse to the same value

}  // namespace based::plot_detail
