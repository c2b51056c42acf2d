#include <array>

#include "based/core/plot.h"
#include "based/core/plot_layout.h"

namespace based {
namespace {

using plot_detail::Anchor;
using plot_detail::number_text;
using plot_detail::PlotLayout;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : plot_detail::drawable(text)) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string rounded(double value) {
  return number_text(static_cast<double>(static_cast<long>(value * 10 + (value < 0 ? -0.5 : 0.5))) / 10);
}

class Svg {
 public:
  Svg() {
    out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number_text(plot_detail::kWidth) + " " +
           number_text(plot_detail::kHeight) + "\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n";
    out_ += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  }

  void line(double x1, double y1, double x2, double y2, const std::string& colour) {
    out_ += "<line x1=\"" + rounded(x1) + "\" y1=\"" + rounded(y1) + "\" x2=\"" + rounded(x2) + "\" y2=\"" + rounded(y2) + "\" stroke=\"" +
            colour + "\"/>\n";
  }

  // `y` is the middle of the text.
  void text(double x, double y, const std::string& content, double size, const std::string& colour, Anchor anchor, bool bold = false) {
    static constexpr std::array<const char*, 3> kAnchors = {"start", "middle", "end"};
    out_ += "<text x=\"" + rounded(x) + "\" y=\"" + rounded(y + 0.36 * size) + "\" font-size=\"" + number_text(size) + "\" fill=\"" +
            colour + "\" text-anchor=\"" + kAnchors[static_cast<size_t>(anchor)] + "\"" + (bold ? " font-weight=\"bold\"" : "") + ">" +
            escaped(content) + "</text>\n";
  }

  static std::string marker(double x, double y, double r, size_t rank) {
    static constexpr std::array<std::array<double, 8>, plot_detail::kShapes> kCorners = {{{},
                                                                                          {-0.9, -0.9, 0.9, -0.9, 0.9, 0.9, -0.9, 0.9},
                                                                                          {0, -1.2, 0, -1.2, 1.1, 0.9, -1.1, 0.9},
                                                                                          {0, -1.3, 1.3, 0, 0, 1.3, -1.3, 0},
                                                                                          {0, 1.2, 0, 1.2, 1.1, -0.9, -1.1, -0.9}}};
    const auto& corners = kCorners[rank % plot_detail::kShapes];
    if (rank % plot_detail::kShapes == 0) return "<circle cx=\"" + rounded(x) + "\" cy=\"" + rounded(y) + "\" r=\"" + rounded(r) + "\"/>\n";
    std::string points;
    for (size_t i = 0; i < corners.size(); i += 2) points += rounded(x + r * corners[i]) + "," + rounded(y + r * corners[i + 1]) + " ";
    return "<polygon points=\"" + points + "\"/>\n";
  }

  void series(const PlotLayout& layout, size_t index) {
    const PlotSeries& series = layout.series[index];
    const size_t rank = layout.ranks[index];
    const std::string colour = series.backdrop ? plot_detail::kBackdrop : plot_detail::rank_colour(rank);
    for (const PlotBar& bar : series.bars) {
      const double x = layout.x(bar.x), low = layout.y(bar.low), high = layout.y(bar.high);
      line(x, low, x, high, colour);
      for (const double end : {low, high}) line(x - 4, end, x + 4, end, colour);
    }
    std::string path, markers;
    for (const auto& [x, y] : series.points) {
      path += rounded(layout.x(x)) + "," + rounded(layout.y(y)) + " ";
      markers += marker(layout.x(x), layout.y(y), series.emphasis ? 5.5 : 4.5, rank);
    }
    if (layout.labels_at_end) markers += marker(layout.labels[index].x - plot_detail::kKeyDistance, layout.labels[index].y, 4.5, rank);
    if (series.line) curve(path, series, rank, colour);
    if (series.line && layout.labels_at_end && !plot_detail::draws_markers(series)) {
      const double x = layout.labels[index].x - plot_detail::kKeyDistance;
      const std::string y = "," + rounded(layout.labels[index].y) + " ";
      curve(rounded(x - plot_detail::kKeyLine) + y + rounded(x + plot_detail::kKeyLine) + y, series, rank, colour);
    }
    if (plot_detail::draws_markers(series)) {
      const std::string style = plot_detail::is_open(rank) ? "white\" stroke=\"" + colour + "\" stroke-width=\"1.8" : colour;
      out_ += "<g fill=\"" + style + "\">\n" + markers + "</g>\n";
    }
  }

  void curve(const std::string& points, const PlotSeries& series, size_t rank, const std::string& colour) {
    out_ += "<polyline points=\"" + points + "\" fill=\"none\" stroke=\"" + colour + "\" stroke-linejoin=\"round\" stroke-width=\"" +
            (series.backdrop   ? "7"
             : series.emphasis ? "3.5"
                               : "2") +
            "\"" + (!series.backdrop && plot_detail::is_open(rank) ? " stroke-dasharray=\"7 4\"" : "") + "/>\n";
  }

  std::string finish() { return out_ + "</svg>\n"; }

 private:
  std::string out_;
};

}  // namespace

std::string plot_svg(const Plot& plot) {
  using namespace plot_detail;
  const PlotLayout layout = make_layout(plot);
  Svg svg;
  for (const Tick& tick : layout.y.ticks) {
    svg.line(layout.left, layout.y(tick.value), layout.right, layout.y(tick.value), kGrid);
    svg.text(layout.left - 10, layout.y(tick.value), tick.text, kTextSize, kGrey, Anchor::end);
  }
  svg.line(layout.left, layout.bottom, layout.right, layout.bottom, kGrey);
  for (const Tick& tick : layout.x.ticks) {
    svg.line(layout.x(tick.value), layout.bottom, layout.x(tick.value), layout.bottom + 5, kGrey);
    svg.text(layout.x(tick.value), layout.bottom + 18, tick.text, kTextSize, kGrey, Anchor::middle);
  }
  svg.text(20, 32, plot.title, layout.title_size, kInk, Anchor::start, true);
  svg.text(20, 60, plot.subtitle, kTextSize, kGrey, Anchor::start);
  svg.text(20, layout.top - 20, plot.y.label, kTextSize, kInk, Anchor::start);
  svg.text((layout.left + layout.right) / 2, layout.bottom + 44, plot.x.label, kTextSize, kInk, Anchor::middle);
  svg.text(20, kHeight - 18, plot.footer, kSmallSize, kGrey, Anchor::start);
  for (const bool backdrop : {true, false}) {
    for (size_t i = 0; i < layout.series.size(); ++i) {
      const PlotSeries& series = layout.series[i];
      if (series.points.empty() || series.backdrop != backdrop) continue;
      svg.series(layout, i);
      const SeriesLabel& label = layout.labels[i];
      svg.text(label.x, label.y, series.label, kTextSize, label_colour(layout, i), label.anchor, series.emphasis);
    }
  }
  for (size_t i = 0; i < layout.notes.size(); ++i) {
    const SeriesLabel& label = layout.note_labels[i];
    svg.text(label.x, label.y, layout.notes[i].text, kSmallSize, kGrey, label.anchor);
  }
  return svg.finish();
}

}  // namespace based
