// Line and scatter plots for talks and pages, drawn by gnuplot in a child process, as SVG and PNG. Without gnuplot a plain SVG writer of
// our own draws the same layout.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "based/core/error.h"

namespace based {

enum class TickFormat {
  number,        // 10k
  bytes,         // 4 KB (1024-based)
  percent,       // 40 %
  powers_of_two  // 16; ticks at powers of two where logarithmic
};

struct PlotAxis {
  std::string label = {};
  bool log = false;
  TickFormat format = TickFormat::number;
  std::optional<double> low = {}, high = {};  // otherwise from the points
};

struct PlotBar {
  double x = 0, low = 0, high = 0;
};

struct PlotSeries {
  std::string label = {};                              // written beside its points: there is no legend to look things up in
  std::vector<std::pair<double, double>> points = {};  // (x, y), joined in the order of x; those that are not finite are left out
  bool line = true, markers = true;
  bool emphasis = false;           // thicker
  std::vector<PlotBar> bars = {};  // of uncertainty, upright
  bool backdrop = false;           // pale and wide behind the others, which it takes no colour from: a frontier
};

struct PlotNote {
  double x = 0, y = 0;
  std::string text;
};

struct Plot {
  std::string title, subtitle, footer;  // the footer says what made the plot: data, settings, machine
  PlotAxis x, y;
  std::vector<PlotSeries> series;
  // Labels form a column on the right, each with its marker or a piece of its line: for many curves that end together.
  bool labels_at_end = false;
  std::vector<PlotNote> notes = {};  // small, beside points; those for which there is no room are left out
};

// Writes `stem`.svg and `stem`.png and returns the files written. Where gnuplot is not installed, only the SVG, and a warning says so.
// Throws Error where there is nothing to draw, a value cannot be on a logarithmic axis, or a file cannot be written.
std::vector<std::string> write_plot(const Plot& plot, const std::string& stem);

std::string plot_svg(const Plot& plot);

}  // namespace based
