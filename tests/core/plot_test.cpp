#include "based/core/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>

#include "based/core/files.h"
#include "based/core/plot_layout.h"
#include "temporary_folder.h"

namespace based {
namespace plot_test {

using plot_detail::make_layout;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

Plot recall_plot() {
  Plot plot;
  plot.title = "Recall & state: it's <one> \"frontier\"";
  plot.footer = "seed_0 `x` $y @z \\n {a}";
  plot.x = {.label = "state bytes", .log = true, .format = TickFormat::bytes};
  plot.y = {.label = "recall", .low = 0, .high = 1};
  plot.series = {{.label = "Attention", .points = {{131072, 0.99}}},
                 {.label = "Sliding window", .points = {{65536, 0.8}, {4096, 0.1}, {16384, 0.4}}},
                 {.label = "BaseConv", .points = {{1024, 0.03}, {4096, 0.09}}},
                 {.label = "Based", .points = {{2200, 0.25}, {11000, 0.82}, {80000, 0.99}}, .emphasis = true}};
  return plot;
}

std::vector<std::string> tick_texts(const plot_detail::Scale& scale) {
  std::vector<std::string> texts;
  for (const plot_detail::Tick& tick : scale.ticks) texts.push_back(tick.text);
  return texts;
}

std::vector<std::string> ticks_of(PlotAxis axis, double low, double high) {
  Plot plot;
  plot.x = std::move(axis);
  plot.x.low = low;
  plot.x.high = high;
  plot.series = {{.label = "a", .points = {{low, 1}, {high, 2}}}};
  return tick_texts(make_layout(plot).x);
}

TEST(Plot, TicksAreRound) {
  EXPECT_THAT(ticks_of({}, 0, 1), ElementsAre("0.0", "0.2", "0.4", "0.6", "0.8", "1.0"));
  EXPECT_THAT(ticks_of({}, 0, 20'000), ElementsAre("0", "5000", "10k", "15k", "20k"));
  EXPECT_THAT(ticks_of({}, -3, 3), ElementsAre("-3", "-2", "-1", "0", "1", "2", "3"));
  EXPECT_THAT(ticks_of({.format = TickFormat::percent}, 0, 1), ElementsAre("0 %", "20 %", "40 %", "60 %", "80 %", "100 %"));
  EXPECT_THAT(ticks_of({.log = true, .format = TickFormat::bytes}, 512, 3 << 20),
              ElementsAre("1 KB", "4 KB", "16 KB", "64 KB", "256 KB", "1 MB"));
  EXPECT_THAT(ticks_of({.log = true, .format = TickFormat::bytes}, 900, 9000), ElementsAre("1 KB", "2 KB", "4 KB", "8 KB"));
  EXPECT_THAT(ticks_of({.log = true}, 0.01, 100'000), ElementsAre("0.01", "0.1", "1", "10", "100", "1000", "10k", "100k"));
  EXPECT_THAT(ticks_of({.log = true}, 90, 2500), ElementsAre("100", "200", "500", "1000", "2000"));
  EXPECT_THAT(ticks_of({.log = true, .format = TickFormat::powers_of_two}, 1, 16), ElementsAre("1", "2", "4", "8", "16"));
  EXPECT_THAT(ticks_of({.format = TickFormat::bytes}, 0, 4096),
              ElementsAre("0 B", "512 B", "1 KB", "1.5 KB", "2 KB", "2.5 KB", "3 KB", "3.5 KB", "4 KB"));
}

TEST(Plot, TicksEndForRangesThatDoublesCannotDivide) {
  EXPECT_THAT(ticks_of({}, 1e20, 1e20 + 16384), SizeIs(testing::Le(9u)));
  EXPECT_THAT(ticks_of({}, 0, 1e300), Not(IsEmpty()));
}

TEST(Plot, PointsLieInsideAndInTheOrderOfX) {
  const plot_detail::PlotLayout layout = make_layout(recall_plot());
  for (const PlotSeries& series : layout.series) {
    for (size_t i = 0; i < series.points.size(); ++i) {
      EXPECT_GT(layout.x(series.points[i].first), layout.left);
      EXPECT_LT(layout.x(series.points[i].first), layout.right);
      EXPECT_GE(layout.y(series.points[i].second), layout.top);
      EXPECT_LE(layout.y(series.points[i].second), layout.bottom);
      if (i > 0) {
        EXPECT_LT(series.points[i - 1].first, series.points[i].first);
      }
    }
  }
  EXPECT_NEAR(layout.y(0), layout.bottom, 1e-9);
  EXPECT_NEAR(layout.y(1), layout.top, 1e-9);
  EXPECT_NEAR(layout.x(1024) - layout.x(512), layout.x(4096) - layout.x(2048), 1e-9) << "octaves are equally wide";
}

TEST(Plot, LabelsStayApartAndOnThePicture) {
  const plot_detail::PlotLayout layout = make_layout(recall_plot());
  for (size_t i = 0; i < layout.labels.size(); ++i) {
    EXPECT_GT(layout.labels[i].x, 0);
    EXPECT_LT(layout.labels[i].x, plot_detail::kWidth);
    for (size_t j = 0; j < i; ++j) {
      const bool apart = std::fabs(layout.labels[i].y - layout.labels[j].y) >= plot_detail::kTextSize ||
                         std::fabs(layout.labels[i].x - layout.labels[j].x) >= 60;
      EXPECT_TRUE(apart) << layout.series[i].label << " and " << layout.series[j].label;
    }
  }
}

TEST(Plot, WhatIsEmphasisedGetsTheFirstColour) {
  const plot_detail::PlotLayout layout = make_layout(recall_plot());
  EXPECT_THAT(layout.ranks, ElementsAre(1u, 2u, 3u, 0u));
}

TEST(Plot, RefusesWhatCannotBeDrawn) {
  const auto error = [](auto change) {
    Plot plot = recall_plot();
    change(plot);
    return message_of<Error>([&] { make_layout(plot); });
  };
  const double nan = std::nan("");
  EXPECT_THAT(error([](Plot& plot) { plot.series.clear(); }), HasSubstr("has no points to draw"));
  EXPECT_THAT(error([&](Plot& plot) { plot.series = {{.label = "a", .points = {{nan, 1}}}}; }), HasSubstr("has no points to draw"));
  EXPECT_THAT(error([](Plot& plot) { plot.series[0].points.emplace_back(0, 1); }),
              HasSubstr("plot: series 'Attention' has 0, which a logarithmic axis cannot show"));
  EXPECT_THAT(error([](Plot& plot) { plot.y.low = 2; }), HasSubstr("the axis 'recall' has its low end above its high end"));
  EXPECT_EQ(error([&](Plot& plot) { plot.series[0].points.emplace_back(1, nan); }), "") << "a point that is not finite is left out";
}

TEST(Plot, ALongTitleIsSmaller) {
  Plot plot = recall_plot();
  EXPECT_EQ(make_layout(plot).title_size, plot_detail::kTitleSize);
  plot.title = std::string(140, 'm');
  EXPECT_NEAR(make_layout(plot).title_size, plot_detail::kTitleSize / 2, 1);
  EXPECT_THAT(plot_svg(plot), Not(HasSubstr("font-size=\"22\"")));
}

TEST(Plot, SvgHoldsEveryTextEscapedAndEverySeries) {
  const std::string svg = plot_svg(recall_plot());
  EXPECT_THAT(svg, testing::StartsWith("<svg xmlns="));
  EXPECT_THAT(svg, HasSubstr("Recall &amp; state: it's &lt;one&gt; &quot;frontier&quot;"));
  for (const char* text : {">Attention<", ">Sliding window<", ">BaseConv<", ">Based<", ">state bytes<", ">recall<", ">64 KB<", ">0.4<"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  const auto count = [&](const std::string& word) {
    int found = 0;
    for (size_t at = svg.find(word); at != std::string::npos; at = svg.find(word, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("<polyline "), 4);
  EXPECT_EQ(count("<circle ") + count("<polygon "), 9);
  EXPECT_EQ(count("nan") + count("inf"), 0);
}

TEST(Plot, GnuplotDrawsThePng) {
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0) GTEST_SKIP() << "gnuplot is not installed";
  const TemporaryFolder folder;
  const std::string stem = folder.file("it's a plot");
  EXPECT_THAT(write_plot(recall_plot(), stem), ElementsAre(stem + ".svg", stem + ".png"));
  const std::string png = read_file(stem + ".png");
  EXPECT_EQ(png.substr(1, 3), "PNG");
  EXPECT_EQ(png.substr(16, 8), std::string("\0\0\x07\x80\0\0\x04\xb0", 8)) << "1920 x 1200";
  EXPECT_EQ(folder.entries(), 2u);
}

TEST(Plot, GnuplotDrawsPercentTicks) {
  const TemporaryFolder folder;
  Plot plot = recall_plot();
  plot.y.format = TickFormat::percent;
  EXPECT_EQ(write_plot(plot, folder.file("recall")).size(), 2u);
}

// Sets an environment variable during its lifetime.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// A PATH whose first gnuplot runs `script`.
std::string path_with_gnuplot(const TemporaryFolder& folder, const std::string& script) {
  write_file_atomic(folder.file("gnuplot"), "#!/bin/sh\n" + script + "\n");
  std::filesystem::permissions(folder.file("gnuplot"), std::filesystem::perms::owner_all);
  return folder.path().string() + ":" + std::getenv("PATH");
}

TEST(Plot, FailuresOfGnuplotAreReported) {
  for (const auto& [script, message] : {std::pair{"echo 'no such terminal' >&2; exit 3", "gnuplot failed: no such terminal"},
                                        {"exit 0", "gnuplot failed: it wrote no whole picture"},
                                        {"printf '\\211PNG\\r\\n\\032\\n cut'", "gnuplot failed: it wrote no whole picture"}}) {
    const TemporaryFolder programs, folder;
    const Environment path("PATH", path_with_gnuplot(programs, script));
    EXPECT_THAT(message_of<Error>([&] { write_plot(recall_plot(), folder.file("p")); }), HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(folder.file("p.png")));
  }
}

TEST(Plot, APictureThatCannotBeWrittenIsNamed) {
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0) GTEST_SKIP() << "gnuplot is not installed";
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("p.png"));
  EXPECT_THAT(message_of<Error>([&] { write_plot(recall_plot(), folder.file("p")); }),
              HasSubstr(folder.file("p.png") + ": cannot be written"));
}

TEST(Plot, AnyPathAndAnyEnvironmentWillDo) {
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0) GTEST_SKIP() << "gnuplot is not installed";
  const TemporaryFolder folder, home;
  for (const char* name : {"a\tb", "a\nb", "a\x1b[31mb", "it's", "\"q\"", "50%d", "back\\slash\\", "`date`", "$HOME", "@x {y}_z^2", "-d",
                           "\xff\xfe", "|cat", "#"}) {
    const std::string stem = folder.file(name);
    EXPECT_THAT(write_plot(recall_plot(), stem), ElementsAre(stem + ".svg", stem + ".png"));
    EXPECT_EQ(read_file(stem + ".png").substr(1, 3), "PNG") << name;
  }
  write_file_atomic(home.file(".gnuplot"), "set terminal nonsense\n");
  for (const auto& [variable, value] :
       {std::pair{"GNUTERM", std::string("nonsense")}, {"HOME", home.path().string()}, {"GNUPLOT_LIB", std::string("/dev/null")}}) {
    const Environment changed(variable, value);
    EXPECT_THAT(write_plot(recall_plot(), folder.file(variable)), SizeIs(2)) << variable;
  }
  const std::string strange = folder.file("a\tfolder");
  std::filesystem::create_directory(strange);
  const Environment changed("TMPDIR", strange);
  EXPECT_THAT(write_plot(recall_plot(), folder.file("p")), SizeIs(2));
  EXPECT_TRUE(std::filesystem::is_empty(strange));
}

TEST(Plot, AnyTextIsDrawn) {
  const std::string svg = [] {
    Plot plot = recall_plot();
    plot.title = "tab\tend\nescape\x1b delete\x7f wrong\xff\xc3";
    plot.series[0].label = "it's\\";
    return plot_svg(plot);
  }();
  EXPECT_THAT(svg, HasSubstr(">tab end escape  delete  wrong\xef\xbf\xbd\xef\xbf\xbd<"));
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0) GTEST_SKIP() << "gnuplot is not installed";
  const TemporaryFolder folder;
  for (const char* text :
       {"it's\\", "50 %", "\\", "'", "\"", "`x`", "@a", "\xff", "a\nb", "$(x)", "'q'", "`touch /dev/null/x`9", "#", "|"}) {
    Plot plot = recall_plot();
    plot.title = plot.subtitle = plot.footer = plot.x.label = plot.y.label = plot.series[0].label = text;
    plot.notes = {{11000, 0.3, text}};
    EXPECT_THAT(write_plot(plot, folder.file("p")), SizeIs(2)) << text;
  }
}

TEST(Plot, AFolderForTemporaryFilesThatIsNoneIsNamed) {
  const TemporaryFolder folder;
  setenv("TMPDIR", "/dev/null", 1);
  EXPECT_THAT(message_of<Error>([&] { write_plot(recall_plot(), folder.file("p")); }), HasSubstr("TMPDIR=/dev/null: no folder"));
  unsetenv("TMPDIR");
}

TEST(Plot, WithoutGnuplotThereIsTheSvgAndAWarning) {
  const TemporaryFolder folder;
  const std::string before = std::getenv("PATH");
  setenv("PATH", folder.path().c_str(), 1);
  testing::internal::CaptureStderr();
  const std::vector<std::string> files = write_plot(recall_plot(), folder.file("p"));
  const std::string warning = testing::internal::GetCapturedStderr();
  setenv("PATH", before.c_str(), 1);
  EXPECT_THAT(files, ElementsAre(folder.file("p.svg")));
  EXPECT_THAT(warning, HasSubstr("gnuplot is not installed"));
  EXPECT_EQ(read_file(folder.file("p.svg")), plot_svg(recall_plot()));
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

Plot frontier_plot() {
  Plot plot = recall_plot();
  plot.series[1].bars = {{4096, 0.05, 0.2}, {16384, 0.3, 0.55}};
  plot.series.push_back({.label = "frontier", .points = {{1024, 0.5}, {131072, 0.5}}, .markers = false, .backdrop = true});
  plot.notes = {{131072, 0.99, "alone"}, {80000, 0.99, "in the way of a curve's point"}};
  return plot;
}

TEST(Plot, BarsAreDrawnAndWidenTheAxis) {
  Plot plot = frontier_plot();
  EXPECT_EQ(count_of(plot_svg(plot), "stroke=\"#cc79a7\""), count_of(plot_svg(recall_plot()), "stroke=\"#cc79a7\""));
  EXPECT_EQ(count_of(plot_svg(plot), "<line"), count_of(plot_svg(recall_plot()), "<line") + 6) << "three lines a bar";
  plot.y = {};
  plot.series[1].bars[0].low = -5;
  EXPECT_LT(make_layout(plot).y.low, -5);
}

TEST(Plot, ABackdropIsBehindTheOthersAndTakesNoColour) {
  const Plot plot = frontier_plot();
  const auto layout = make_layout(plot);
  const std::string svg = plot_svg(plot);
  EXPECT_EQ(svg.find("<polyline"), svg.rfind("<polyline", svg.find(plot_detail::kBackdrop))) << "the first line drawn";
  EXPECT_THAT(std::vector(layout.ranks.begin(), layout.ranks.begin() + 4), ElementsAre(1, 2, 3, 0));
}

TEST(Plot, ThereAreTenMarkersBeforeOneComesAgain) {
  Plot plot;
  for (int i = 0; i < 7; ++i) plot.series.push_back({.label = std::to_string(i), .points = {{0, i}, {1, i}}});
  const std::string svg = plot_svg(plot);
  EXPECT_EQ(count_of(svg, "fill=\"white\" stroke="), 2U) << "the sixth and the seventh are open";
  EXPECT_EQ(count_of(svg, "stroke-dasharray"), 2U);
}

TEST(Plot, LabelsAtTheEndStayApartAndHaveTheirMarkers) {
  Plot plot;
  plot.labels_at_end = true;
  for (int i = 0; i < 12; ++i) plot.series.push_back({.label = "series " + std::to_string(i), .points = {{0, 0}, {1, 0.9 + 0.001 * i}}});
  const auto layout = make_layout(plot);
  std::vector<double> y;
  for (const auto& label : layout.labels) y.push_back(label.y);
  std::sort(y.begin(), y.end());
  for (size_t i = 1; i < y.size(); ++i) EXPECT_GE(y[i] - y[i - 1], plot_detail::kTextSize);
  EXPECT_GE(y.front(), layout.top);
  EXPECT_LE(y.back(), layout.bottom);
  const std::string svg = plot_svg(plot);
  plot.labels_at_end = false;
  EXPECT_EQ(count_of(svg, "<circle"), count_of(plot_svg(plot), "<circle") + 3) << "of ranks 0, 5 and 10";
}

// The label of a series without markers, such as a frontier, is next to a piece of its line.
TEST(Plot, LabelsAtTheEndHaveTheLinesOfWhatHasNoMarkers) {
  Plot plot = frontier_plot();
  plot.labels_at_end = true;
  PlotSeries curve{.label = "curve"};
  for (int i = 0; i < 100; ++i) curve.points.emplace_back(1024 + i, 0.1);  // too many for markers
  plot.series.push_back(curve);
  const std::string svg = plot_svg(plot);
  const auto layout = make_layout(plot);
  for (size_t i = 0; i < layout.series.size(); ++i) {
    if (plot_detail::draws_markers(layout.series[i])) continue;
    const std::string y = plot_detail::number_text(std::round(layout.labels[i].y * 10) / 10);
    const std::string colour = layout.series[i].backdrop ? plot_detail::kBackdrop : plot_detail::rank_colour(layout.ranks[i]);
    const double x = layout.labels[i].x - plot_detail::kKeyDistance;
    EXPECT_THAT(
        svg, HasSubstr("<polyline points=\"" + plot_detail::number_text(std::round((x - plot_detail::kKeyLine) * 10) / 10) + "," + y + " "))
        << layout.series[i].label;
    EXPECT_LT(x + plot_detail::kKeyLine, layout.labels[i].x) << "the text begins after it";
    EXPECT_GT(x - plot_detail::kKeyLine, layout.right) << "it hides nothing of the figure";
    EXPECT_EQ(count_of(svg, "fill=\"none\" stroke=\"" + colour), 2U);
  }
  const TemporaryFolder programs, folder;
  const Environment path("PATH", path_with_gnuplot(programs, "cat > '" + folder.file("script") + "'"));
  message_of<Error>([&] { write_plot(plot, folder.file("p")); });
  const std::string script = read_file(folder.file("script"));
  EXPECT_EQ(count_of(script, "set arrow from screen "), 2U) << script;
  EXPECT_THAT(script, HasSubstr(std::string(" nohead front linecolor rgb '") + plot_detail::kBackdrop + "' linewidth 6"));
}

TEST(Plot, NotesAreLeftOutWhereTheyWouldHideSomething) {
  Plot plot = frontier_plot();
  plot.notes = {{11000, 0.82, "middle"}};
  EXPECT_THAT(plot_svg(plot), HasSubstr(">middle<"));
  plot.notes.assign(40, {11000, 0.82, "middle"});
  EXPECT_LT(make_layout(plot).notes.size(), 5U);
}

TEST(Plot, GnuplotDrawsBarsBackdropsAndNotes) {
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0) GTEST_SKIP() << "gnuplot is not installed";
  const TemporaryFolder folder;
  Plot plot = frontier_plot();
  for (int i = 0; i < 7; ++i) plot.series.push_back({.label = std::to_string(i), .points = {{2000, i * 0.1}, {3000, i * 0.1}}});
  EXPECT_THAT(write_plot(plot, folder.file("a")), SizeIs(2));
}

}  // namespace plot_test
}  // namespace based
