#include "based/core/plot.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "based/core/files.h"
#include "based/core/log.h"
#include "based/core/plot_layout.h"
#include "based/core/temporaries.h"
#include "based/core/text.h"

extern char** environ;

namespace based {
namespace {

using namespace plot_detail;

constexpr const char* kFont = "DejaVu Sans";

// A gnuplot string literal in double quotes: a literal in single quotes cannot begin with a quote. Backquotes are escaped, since gnuplot
// would run their content as a command.
std::string literal(const std::string& text) {
  std::string out = "\"";
  for (const char c : drawable(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '`' ? "\\140" : std::string(1, c);
  }
  return out += '"';
}

std::string screen_x(double points) { return number_text(points / kWidth); }
std::string screen_y(double points) { return number_text(1 - points / kHeight); }

void add_label(std::string& script, double x, double y, const std::string& text, double size, const std::string& colour, Anchor anchor,
               bool bold = false) {
  static constexpr std::array<const char*, 3> kAnchors = {"left", "center", "right"};
  if (text.empty()) return;
  script += "set label " + literal(text) + " at screen " + screen_x(x) + ", screen " + screen_y(y) + " " +
            kAnchors[static_cast<size_t>(anchor)] + " front noenhanced font '" + kFont + (bold ? ":Bold" : "") + "," + number_text(size) +
            "' textcolor rgb '" + colour + "'\n";
}

// A tick label. gnuplot takes it as a printf format, so percent signs are doubled.
std::string tick_literal(const std::string& text) {
  std::string doubled;
  for (const char c : text) doubled += c == '%' ? "%%" : std::string(1, c);
  return literal(doubled);
}

void add_axis(std::string& script, const char* name, const Scale& scale) {
  const std::string axis(name);
  if (scale.log) script += "set logscale " + axis + "\n";
  script += "set " + axis + "range [" + number_text(scale.low) + ":" + number_text(scale.high) + "]\nset " + axis + "tics (";
  for (size_t i = 0; i < scale.ticks.size(); ++i) {
    if (i > 0) script += ", ";
    script += tick_literal(scale.ticks[i].text) + " " + number_text(scale.ticks[i].value);
  }
  script += std::string(")\nset ") + axis + "tics nomirror out scale 0.6 font '" + kFont + "," + number_text(kTextSize) +
            "' textcolor rgb '" + kGrey + "'\n";
}

// Appends the series' data and label to `script` and its plot command to `curves`.
void add_series(std::string& script, std::string& curves, const PlotLayout& layout, size_t index) {
  const PlotSeries& series = layout.series[index];
  const SeriesLabel& label = layout.labels[index];
  const size_t rank = layout.ranks[index];
  add_label(script, label.x, label.y, series.label, kTextSize, label_colour(layout, index), label.anchor, series.emphasis);
  const std::string data = "$series" + std::to_string(index), bars = "$bars" + std::to_string(index);
  script += data + " << END\n";
  for (const auto& [x, y] : series.points) script += number_text(x) + " " + number_text(y) + "\n";
  script += "END\n";
  const std::string colour = std::string(" linecolor rgb '") + (series.backdrop ? kBackdrop : rank_colour(rank)) + "'";
  const auto separator = [&] { return curves.empty() ? "plot " : ", "; };
  if (!series.bars.empty()) {
    script += bars + " << END\n";
    for (const PlotBar& bar : series.bars) script += number_text(bar.x) + " " + number_text(bar.low) + " " + number_text(bar.high) + "\n";
    script += "END\n";
    curves += separator() + bars + " using 1:2:(0):($3-$2) with vectors heads size screen 0.004,90 linewidth 1.4" + colour;
  }
  const bool markers = draws_markers(series);
  curves += separator() + data + " using 1:2 with " + (!series.line ? "points" : markers ? "linespoints" : "lines") + colour;
  const std::string style = std::string(series.backdrop   ? " linewidth 6"
                                        : series.emphasis ? " linewidth 3"
                                                          : " linewidth 1.8") +
                            (!series.backdrop && is_open(rank) ? " dashtype (12,9)" : "");
  if (series.line) curves += style;
  static constexpr std::array<const char*, 2 * kShapes> kPointTypes = {"7", "5", "9", "13", "11", "6", "4", "8", "12", "10"};
  static constexpr std::array<double, kShapes> kSizes = {1, 0.9, 1.1, 1.2, 1.1};  // gnuplot's shapes differ in area
  if (markers) {
    const double scale = (series.emphasis ? 1.05 : 0.9) * kSizes[rank % kShapes];
    const std::string point = std::string(" pointtype ") + kPointTypes[rank % kPointTypes.size()] + " pointsize " + number_text(scale);
    curves += point;
    if (layout.labels_at_end)
      script += "set label '' at screen " + screen_x(label.x - kKeyDistance) + ", screen " + screen_y(label.y) + " front point" + point +
                colour + "\n";
  } else if (layout.labels_at_end && series.line) {
    const std::string y = ", screen " + screen_y(label.y);
    script += "set arrow from screen " + screen_x(label.x - kKeyDistance - kKeyLine) + y + " to screen " +
              screen_x(label.x - kKeyDistance + kKeyLine) + y + " nohead front" + colour + style + "\n";
  }
}

// The script writes to standard output, so that no file name can be misread by gnuplot.
std::string gnuplot_script(const Plot& plot, const PlotLayout& layout) {
  std::string script = "set encoding utf8\nunset key\n";
  script += "set lmargin at screen " + screen_x(layout.left) + "\nset rmargin at screen " + screen_x(layout.right) + "\n";
  script += "set tmargin at screen " + screen_y(layout.top) + "\nset bmargin at screen " + screen_y(layout.bottom) + "\n";
  script +=
      std::string("set border 1 linecolor rgb '") + kGrey + "'\nset grid noxtics ytics back linetype 1 linecolor rgb '" + kGrid + "'\n";
  add_axis(script, "x", layout.x);
  add_axis(script, "y", layout.y);
  script += "set ytics in scale 0\n";
  add_label(script, 20, 32, plot.title, layout.title_size, kInk, Anchor::start, true);
  add_label(script, 20, 60, plot.subtitle, kTextSize, kGrey, Anchor::start);
  add_label(script, 20, layout.top - 20, plot.y.label, kTextSize, kInk, Anchor::start);
  add_label(script, (layout.left + layout.right) / 2, layout.bottom + 44, plot.x.label, kTextSize, kInk, Anchor::middle);
  add_label(script, 20, kHeight - 18, plot.footer, kSmallSize, kGrey, Anchor::start);
  std::string curves;
  for (const bool backdrop : {true, false})
    for (size_t i = 0; i < layout.series.size(); ++i)
      if (layout.series[i].backdrop == backdrop && !layout.series[i].points.empty()) add_series(script, curves, layout, i);
  for (size_t i = 0; i < layout.notes.size(); ++i) {
    const SeriesLabel& label = layout.note_labels[i];
    add_label(script, label.x, label.y, layout.notes[i].text, kSmallSize, kGrey, label.anchor);
  }
  // Two pixels per point, so that a projector shows no steps.
  const std::string terminal = "set terminal pngcairo noenhanced rounded size " + number_text(2 * kWidth) + "," + number_text(2 * kHeight) +
                               " fontscale 1.5 linewidth 2 pointscale 2 font '" + kFont + "," + number_text(kTextSize) +
                               "' background rgb '#ffffff'\nset output\n";
  return terminal + script + curves + "\n";
}

// A temporary file, which the destructor removes.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) {
    path_ = temporary_folder() + "/based-plot-XXXXXX";
    const int descriptor = mkstemp(path_.data());
    if (descriptor < 0) throw Error(path_ + ": cannot make a temporary file: " + system_message(errno));
    close(descriptor);
    if (!content.empty()) write_file_atomic(path_, content);
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The environment without the variables that change gnuplot's start, such as its terminal and script folders.
std::vector<char*> environment_of_gnuplot() {
  std::vector<char*> kept;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!text.starts_with("GNUTERM=") && !text.starts_with("GNUPLOT_LIB=")) kept.push_back(*entry);
  }
  kept.push_back(nullptr);
  return kept;
}

// Whether the PNG is complete: on a full disk it is truncated, which gnuplot does not report.
bool is_whole_png(std::string_view bytes) {
  constexpr std::string_view kBegin = "\x89PNG\r\n\x1a\n", kEnd("IEND\xae\x42\x60\x82", 8);
  return bytes.starts_with(kBegin) && bytes.ends_with(kEnd);
}

// The PNG that gnuplot draws for `script`, or nullopt if gnuplot is not installed. Throws Error if gnuplot fails.
std::optional<std::string> run_gnuplot(const std::string& script) {
  const TemporaryFile input(script), output(""), messages("");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, input.path().c_str(), O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.path().c_str(), O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, messages.path().c_str(), O_WRONLY, 0);
  std::string program = "gnuplot", no_settings = "-d",
              from_input = "-";  // -d: ignore the user's settings, which may select another terminal
  std::array<char*, 4> arguments = {program.data(), no_settings.data(), from_input.data(), nullptr};
  pid_t child = 0;
  const int failed = posix_spawnp(&child, "gnuplot", &actions, nullptr, arguments.data(), environment_of_gnuplot().data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed == ENOENT || failed == EACCES) return {};
  if (failed != 0) throw Error("gnuplot: cannot start it: " + system_message(failed));
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw Error("gnuplot: cannot wait for it: " + system_message(errno));
  }
  const bool ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  std::string png = read_file(output.path());
  if (!ended_well || !is_whole_png(png)) {
    const std::string said = read_file(messages.path());
    throw Error("gnuplot failed: " + (said.empty()
                                          ? "it wrote no whole picture, and does not say why; is there room in " + temporary_folder() + "?"
                                          : printable(said, 400)));
  }
  return png;
}

}  // namespace

std::vector<std::string> write_plot(const Plot& plot, const std::string& stem) {
  const PlotLayout layout = make_layout(plot);
  write_file_atomic(stem + ".svg", plot_svg(plot));
  const std::optional<std::string> png = run_gnuplot(gnuplot_script(plot, layout));
  if (!png) {
    log_warning("gnuplot is not installed: only " + stem + ".svg is written, and no PNG");
    return {stem + ".svg"};
  }
  write_file_atomic(stem + ".png", *png);
  return {stem + ".svg", stem + ".png"};
}

}  // namespace based
