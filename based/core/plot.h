// Line and scatter plots as SVG and PNG. This library writes the SVG; gnuplot, in a child process, draws the PNG with the same layout.
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
  powers_of_two  // 16; on logarithmic axes, ticks at powers of two
};

struct PlotAxis {
  std::string label = {};
  bool log = false;
  TickFormat format = TickFormat::number;
  std::optional<double> low = {}, high = {};  // limits; by default they follow from the points
};

struct PlotBar {
  double x = 0, low = 0, high = 0;
};

struct PlotSeries {
  std::string label = {};                              // written next to the points; plots have no legend
  std::vector<std::pair<double, double>> points = {};  // (x, y), connected in the order of x; points that are not finite are left out
  bool line = true, markers = true;
  bool emphasis = false;           // thicker
  std::vector<PlotBar> bars = {};  // vertical error bars
  bool backdrop = false;           // a pale, wide line in the background that uses no colour of the palette, such as a frontier
};

struct PlotNote {
  double x = 0, y = 0;
  std::string text;
};

struct Plot {
  std::string title, subtitle, footer;  // the footer tells data, settings and machine
  PlotAxis x, y;
  std::vector<PlotSeries> series;
  // Puts the labels into a column on the right, each with its marker or a piece of its line. For many curves that end close together.
  bool labels_at_end = false;
  std::vector<PlotNote> notes = {};  // small text next to points; notes without room are left out
};

// Writes `stem`.svg and `stem`.png and returns the files written. Without gnuplot it writes the SVG only and logs a warning. Throws Error
// if there is nothing to draw, a value cannot be on a logarithmic axis, or a file cannot be written.
std::vector<std::string> write_plot(const Plot& plot, const std::string& stem);

std::string plot_svg(const Plot& plot);

}  // namespace based
