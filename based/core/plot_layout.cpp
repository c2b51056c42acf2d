#include "based/core/plot_layout.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "based/core/text.h"
#include "based/core/utf8.h"

namespace based::plot_detail {
namespace {

constexpr int kMaxTicks = 8;

struct Box {
  double left, top, right, bottom;
  bool contains(double x, double y) const { return x >= left && x <= right && y >= top && y <= bottom; }
  double overlap(const Box& other) const {
    const double w = std::min(right, other.right) - std::max(left, other.left),
                 h = std::min(bottom, other.bottom) - std::max(top, other.top);
    return w > 0 && h > 0 ? w * h : 0;
  }
};

std::string fixed(double value, int decimals) {
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value == 0 ? 0.0 : value, std::chars_format::fixed, decimals);
  return error == std::errc() ? std::string(text, end) : number_text(value);  // too many digits for `text`
}

std::string tick_text(double value, TickFormat format) {
  if (format == TickFormat::percent) return number_text(std::round(value * 1e6) / 1e4) + " %";
  if (format == TickFormat::bytes) {
    static constexpr std::array<const char*, 5> kUnits = {" B", " KB", " MB", " GB", " TB"};
    size_t unit = 0;
    for (; std::fabs(value) >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
    return number_text(value) + kUnits[unit];
  }
  if (format == TickFormat::powers_of_two) return number_text(value);
  static constexpr std::array<const char*, 4> kUnits = {"", "k", "M", "G"};
  size_t unit = 0;
  if (std::fabs(value) >= 10'000) {
    for (; std::fabs(value) >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  }
  return number_text(std::round(value * 1e9) / 1e9) + kUnits[unit];
}

// Round steps of 1, 2 or 5 times a power of ten (of two, for bytes).
std::vector<Tick> linear_ticks(double low, double high, TickFormat format) {
  double step = 1;
  if (format == TickFormat::bytes) {
    step = std::exp2(std::ceil(std::log2((high - low) / kMaxTicks)));
  } else {
    const double raw = (high - low) / kMaxTicks, power = std::pow(10, std::floor(std::log10(raw)));
    step = 10 * power;
    for (const double factor : {5.0, 2.0, 1.0}) {
      if (factor * power >= raw) step = factor * power;
    }
  }
  // All ticks have the decimals of the step: 0.0, 0.2, … 1.0.
  const int decimals =
      format == TickFormat::number && step < 1 && step >= 1e-6 ? static_cast<int>(-std::floor(std::log10(step) + 1e-9)) : 0;
  const double first = std::ceil(low / step - 1e-9);
  std::vector<Tick> ticks;
  for (int k = 0; k <= kMaxTicks && (first + k) * step <= high + 1e-9 * step; ++k) {
    const double value = (first + k) * step;
    ticks.push_back({value, decimals > 0 ? fixed(value, decimals) : tick_text(value, format)});
  }
  return ticks;
}

std::vector<Tick> log_ticks(double low, double high, TickFormat format) {
  const double base = format == TickFormat::number || format == TickFormat::percent ? 10 : 2;
  const double first = std::ceil(std::log(low) / std::log(base) - 1e-9), last = std::floor(std::log(high) / std::log(base) + 1e-9);
  double stride = 1;
  while ((last - first) / stride + 1 > kMaxTicks) stride *= 2;
  std::vector<Tick> ticks;
  // Multiples of the stride, so that 1 KB or 1 is a tick if it is in range.
  for (double i = std::ceil(first / stride) * stride; i <= last; i += stride) {
    const double value = std::pow(base, i);
    ticks.push_back({value, tick_text(value, format)});
  }
  if (base == 2 || ticks.size() > 2) return ticks;
  // Fewer than three powers of ten are too few ticks to read values from: 2 and 5 times each power are added.
  ticks.clear();
  for (double i = std::floor(std::log10(low)); i <= std::log10(high); ++i)
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double value = factor * std::pow(10, i);
      if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) ticks.push_back({value, tick_text(value, format)});
    }
  return ticks;
}

Scale make_scale(const PlotAxis& axis, const std::vector<double>& values, double begin, double end) {
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  Scale scale;
  scale.log = axis.log;
  scale.begin = begin;
  scale.end = end;
  scale.low = axis.low.value_or(*least);
  scale.high = axis.high.value_or(*greatest);
  if (!(scale.low <= scale.high)) throw Error("plot: the axis " + in_quotes(axis.label) + " has its low end above its high end");
  if (axis.log && !(scale.low > 0)) throw Error("plot: 0 and less cannot be on the logarithmic axis " + in_quotes(axis.label));
  // Some space around the points, unless the caller has fixed the limit.
  if (axis.log) {
    const double air = std::max(std::pow(scale.high / scale.low, 0.06), 1.25);
    if (!axis.low) scale.low /= air;
    if (!axis.high) scale.high *= air;
  } else {
    const double air = scale.high > scale.low ? 0.03 * (scale.high - scale.low) : std::max(std::fabs(scale.low) * 0.1, 0.5);
    if (!axis.low) scale.low -= air;
    if (!axis.high) scale.high += air;
  }
  scale.ticks = axis.log ? log_ticks(scale.low, scale.high, axis.format) : linear_ticks(scale.low, scale.high, axis.format);
  return scale;
}

double text_width(const std::string& text, double size) {
  const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; });
  return 0.6 * size * static_cast<double>(characters);
}

// Places labels one after another, each next to one of its points where it covers least.
class LabelPlacer {
 public:
  explicit LabelPlacer(const PlotLayout& layout) : layout_(layout) {
    for (size_t s = 0; s < layout.series.size(); ++s) trace(layout.series[s], s);
  }

  SeriesLabel place(size_t index) {
    const PlotSeries& series = layout_.series[index];
    SeriesLabel best;
    Box best_box{};
    double best_cost = INFINITY;
    const size_t count = series.points.size(), stride = std::max<size_t>(count / 16, 1);
    for (size_t back = 0; back < count; back += stride) {
      const auto& [value_x, value_y] = series.points[count - 1 - back];
      const double x = layout_.x(value_x), y = layout_.y(value_y);
      const std::array<SeriesLabel, 6> places = {{{x + 12, y, Anchor::start},
                                                  {x, y - 18, Anchor::middle},
                                                  {x, y + 18, Anchor::middle},
                                                  {x - 12, y, Anchor::end},
                                                  {x + 8, y + 16, Anchor::start},
                                                  {x + 8, y - 16, Anchor::start}}};
      for (size_t p = 0; p < places.size(); ++p) {
        const Box box = box_of(places[p], series.label, kTextSize);
        const double cost =
            hidden(box, index) + 3.0 * static_cast<double>(p) + 2.0 * static_cast<double>(back) / static_cast<double>(stride);
        if (cost < best_cost) {
          best_cost = cost;
          best = places[p];
          best_box = box;
        }
      }
    }
    taken_.push_back(best_box);
    return best;
  }

  // nullopt if the note would cover something.
  std::optional<SeriesLabel> place(const PlotNote& note) {
    const double x = layout_.x(note.x), y = layout_.y(note.y);
    const std::array<SeriesLabel, 4> places = {
        {{x, y - 14, Anchor::middle}, {x, y + 14, Anchor::middle}, {x + 9, y + 8, Anchor::start}, {x - 9, y - 8, Anchor::end}}};
    for (const SeriesLabel& at : places) {
      const Box box = box_of(at, note.text, kSmallSize);
      if (box.right > layout_.right || hidden(box, none) > 0) continue;
      taken_.push_back(box);
      return at;
    }
    return {};
  }

 private:
  static constexpr size_t none = SIZE_MAX;

  struct Mark {
    double x, y;
    size_t series;
    bool marker;
  };

  // Marks the curve by dots every few points, its markers included.
  void trace(const PlotSeries& series, size_t index) {
    for (const PlotBar& bar : series.bars)
      for (double y = layout_.y(bar.high); y <= layout_.y(bar.low); y += 6) marks_.push_back({layout_.x(bar.x), y, index, false});
    for (size_t i = 0; i < series.points.size(); ++i) {
      const double x = layout_.x(series.points[i].first), y = layout_.y(series.points[i].second);
      marks_.push_back({x, y, index, draws_markers(series)});
      if (!series.line || i + 1 == series.points.size()) continue;
      const double dx = layout_.x(series.points[i + 1].first) - x, dy = layout_.y(series.points[i + 1].second) - y;
      const int steps = static_cast<int>(std::hypot(dx, dy) / 6);
      for (int k = 1; k < steps; ++k) marks_.push_back({x + dx * k / steps, y + dy * k / steps, index, false});
    }
  }

  static Box box_of(const SeriesLabel& place, const std::string& text, double size) {
    const double width = text_width(text, size), half = 0.65 * size;
    const double left = place.anchor == Anchor::start ? place.x : place.anchor == Anchor::end ? place.x - width : place.x - width / 2;
    return {left, place.y - half, left + width, place.y + half};
  }

  double hidden(const Box& box, size_t own) const {
    double cost = 0;
    if (box.left < layout_.left + 4 || box.right > kWidth - 4 || box.top < layout_.top - 12 || box.bottom > layout_.bottom - 2)
      cost += 2000;
    if (box.right > layout_.right) cost += 0.2 * (box.right - layout_.right);
    for (const Box& other : taken_) cost += 4 * box.overlap(other);
    for (const Mark& mark : marks_) {
      // Keeps a larger distance from the markers of other series, to which the label would seem to belong.
      const double reach = !mark.marker ? 2 : own == none ? 5 : mark.series == own ? 7 : 20;
      const Box grown{box.left - reach, box.top - reach / 2, box.right + reach, box.bottom + reach / 2};
      if (grown.contains(mark.x, mark.y)) cost += (mark.marker ? 60 : 25) * (mark.series == own ? 0.7 : 1);
    }
    return cost;
  }

  const PlotLayout& layout_;
  std::vector<Mark> marks_;
  std::vector<Box> taken_;
};

// The width of the column of labels at the end: the markers and the longest text.
double label_column(const Plot& plot) {
  double width = 0;
  for (const PlotSeries& series : plot.series) width = std::max(width, text_width(series.label, kTextSize));
  return std::min(width + 48, kWidth / 2);
}

// Places each label next to the last point of its series, with a minimum distance between labels.
void place_at_end(PlotLayout& layout) {
  constexpr double apart = 1.35 * kTextSize;
  std::vector<size_t> order;
  for (size_t i = 0; i < layout.series.size(); ++i) {
    if (layout.series[i].points.empty()) continue;
    layout.labels[i] = {layout.right + 32, layout.y(layout.series[i].points.back().second), Anchor::start};
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return layout.labels[a].y < layout.labels[b].y; });
  double least = layout.top;
  for (const size_t i : order) {
    layout.labels[i].y = std::max(layout.labels[i].y, least);
    least = layout.labels[i].y + apart;
  }
  double most = layout.bottom;
  for (size_t k = order.size(); k-- > 0; most -= apart) {
    layout.labels[order[k]].y = std::min(layout.labels[order[k]].y, most);
    most = layout.labels[order[k]].y;
  }
}

}  // namespace

// The palette of Okabe and Ito, distinguishable with every kind of colour blindness, without its yellow, which is invisible on white.
const char* rank_colour(size_t rank) {
  static constexpr std::array<const char*, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555"};
  return kColours[rank % kColours.size()];
}

const char* label_colour(const PlotLayout& layout, size_t series) {
  return layout.series[series].backdrop ? kGrey : rank_colour(layout.ranks[series]);
}

double Scale::operator()(double value) const {
  const double place = log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  return begin + place * (end - begin);
}

bool draws_markers(const PlotSeries& series) { return series.markers && (series.points.size() <= 40 || !series.line); }

std::string drawable(const std::string& text) {
  std::string out;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Utf8Char c = utf8_at(at, end);
    if (c.code == kInvalidUtf8 || c.code == 0xfffe || c.code == 0xffff) {  // XML has no such characters
      out += "\xef\xbf\xbd";
    } else if (c.code < 0x20 || (c.code >= 0x7f && c.code < 0xa0)) {
      out += ' ';
    } else {
      out.append(at, static_cast<size_t>(c.size));
    }
    at += c.size;
  }
  return out;
}

std::string number_text(double value) {
  char text[40];
  if (value == 0) value = 0;  // no "-0"
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return error == std::errc() ? std::string(text, end) : "?";
}

PlotLayout make_layout(const Plot& plot) {
  PlotLayout layout;
  std::vector<double> xs, ys;
  for (const PlotSeries& given : plot.series) {
    PlotSeries series = given;
    std::erase_if(series.points, [](const auto& point) { return !std::isfinite(point.first) || !std::isfinite(point.second); });
    std::stable_sort(series.points.begin(), series.points.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [x, y] : series.points) {
      if ((plot.x.log && x <= 0) || (plot.y.log && y <= 0)) {
        throw Error("plot: series " + in_quotes(series.label) + " has " + number_text(x <= 0 ? x : y) +
                    ", which a logarithmic axis cannot show");
      }
      xs.push_back(x);
      ys.push_back(y);
    }
    std::erase_if(series.bars,
                  [](const PlotBar& bar) { return !std::isfinite(bar.x) || !std::isfinite(bar.low) || !std::isfinite(bar.high); });
    for (const PlotBar& bar : series.bars) ys.insert(ys.end(), {bar.low, bar.high});
    layout.series.push_back(std::move(series));
  }
  if (xs.empty()) throw Error("plot: " + in_quotes(plot.title) + " has no points to draw");
  layout.title_size = std::min(kTitleSize, kTitleSize * (kWidth - 30) / text_width(plot.title, kTitleSize));
  layout.left = 84;
  layout.right = kWidth - (plot.labels_at_end ? label_column(plot) : 40);
  layout.top = plot.subtitle.empty() ? 86 : 110;
  layout.bottom = plot.footer.empty() ? kHeight - 66 : kHeight - 92;
  layout.x = make_scale(plot.x, xs, layout.left, layout.right);
  layout.y = make_scale(plot.y, ys, layout.bottom, layout.top);
  LabelPlacer placer(layout);
  layout.labels.resize(layout.series.size());
  layout.ranks.resize(layout.series.size());
  size_t rank = 0;
  for (const bool emphasis : {true, false}) {
    for (size_t i = 0; i < layout.series.size(); ++i) {
      if (layout.series[i].emphasis != emphasis) continue;
      layout.ranks[i] = rank;
      rank += !layout.series[i].backdrop;
      if (!layout.series[i].points.empty() && !plot.labels_at_end) layout.labels[i] = placer.place(i);
    }
  }
  layout.labels_at_end = plot.labels_at_end;
  if (plot.labels_at_end) place_at_end(layout);
  for (const PlotNote& note : plot.notes) {
    const auto placed = placer.place(note);
    if (!placed) continue;
    layout.notes.push_back(note);
    layout.note_labels.push_back(*placed);
  }
  return layout;
}

}  // namespace based::plot_detail
