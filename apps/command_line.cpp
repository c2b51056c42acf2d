#include "apps/command_line.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <sstream>
#include <string_view>

#include "apps/output.h"
#include "based/core/config.h"
#include "based/core/text.h"

namespace based::apps {
namespace {

template <class T>
struct IsList : std::false_type {};
template <class T>
struct IsList<std::vector<T>> : std::true_type {};

std::string show(const std::string& value) { return value; }
std::string show(const std::optional<std::string>& value) { return value.value_or(""); }
std::string show(bool value) { return value ? "true" : "false"; }
std::string show(int64_t value) { return std::to_string(value); }
std::string show(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

std::string range_text(const Range<int64_t>& range) {
  return "an integer from " + std::to_string(range.least) + " to " + std::to_string(range.most);
}

std::string range_text(const Range<double>& range) {
  constexpr Range<double> all;
  std::string text = "a number";
  if (range.least > all.least) text += (range.most < all.most ? " from " : " of at least ") + show(range.least);
  if (range.most < all.most) text += (range.least > all.least ? " to " : " of at most ") + show(range.most);
  return text;
}

[[noreturn]] void refuse(const std::string& name, const std::string& wanted, const std::string& text) {
  throw UsageError(name + " must be " + wanted + ", got " + in_quotes(text));
}

void parse(const std::string& name, const std::string& text, std::string& value, Range<std::string> range) {
  if (text.empty() && !range.may_be_empty) throw UsageError(name + " must not be empty");
  value = text;
}

void parse(const std::string&, const std::string& text, std::optional<std::string>& value, Range<std::optional<std::string>>) {
  value = text;
}

void parse(const std::string& name, const std::string& text, bool& value, Range<bool>) {
  if (text != "true" && text != "false") refuse(name, "true or false", text);
  value = text == "true";
}

template <class T>
void parse(const std::string& name, const std::string& text, T& value, const Range<T>& range) {
  T read{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, read);
  bool right = error == std::errc() && stop == end && read >= range.least && read <= range.most;
  if constexpr (std::is_same_v<T, double>) right = right && std::isfinite(read);
  if (!right) refuse(name, range_text(range), text);
  value = read;
}

const char* type_name(const std::string&) { return "TEXT"; }
const char* type_name(const std::optional<std::string>&) { return "TEXT"; }
const char* type_name(bool) { return "true|false"; }
const char* type_name(int64_t) { return "INT"; }
const char* type_name(double) { return "NUMBER"; }

// The values of options that mean the same in every command.
const std::unordered_map<std::string, std::vector<std::string>>& usual_values() {
  static const std::unordered_map<std::string, std::vector<std::string>> values{{"--device", {"cpu", "cuda"}},
                                                                                {"--dtype", {"fp32", "bf16", "fp64"}}};
  return values;
}

OptionEntry option_entry(const CLI::Option& option, const OfferTable& offers) {
  OptionEntry entry;
  entry.positional = option.get_positional();
  entry.name = option.get_name(entry.positional);
  if (!entry.positional && !option.get_lnames().empty()) entry.name = "--" + option.get_lnames().front();
  if (!option.get_snames().empty()) entry.short_name = "-" + option.get_snames().front();
  if (option.get_items_expected_max() > 0) entry.value = option.get_type_name();
  entry.initial = option.get_default_str();
  entry.help = option.get_description();
  entry.required = option.get_required();
  entry.repeated = option.get_items_expected_max() > 1;
  const auto offered = offers.find(&option);
  const auto usual = usual_values().find(entry.name);
  if (entry.value == "true|false") entry.choices = {"true", "false"};
  if (offered != offers.end())
    entry.choices = offered->second.values();
  else if (usual != usual_values().end())
    entry.choices = usual->second;
  entry.files = entry.value == "TEXT" && (offered == offers.end() ? entry.choices.empty() : offered->second.files_too);
  return entry;
}

CommandEntry command_entry(const CLI::App& app, const std::string& parents, const OfferTable& offers) {
  CommandEntry entry;
  entry.name = parents + app.get_name();
  entry.summary = app.get_description();
  entry.runs = app.get_require_subcommand_min() == 0;
  for (const CLI::Option* option : app.get_options()) entry.options.push_back(option_entry(*option, offers));
  for (const CLI::App* nested : app.get_subcommands([](const CLI::App*) { return true; }))
    entry.commands.push_back(command_entry(*nested, entry.name + " ", offers));
  return entry;
}

// The innermost command that was parsed before an error, and its full name ("based mqar eval").
std::pair<const CLI::App*, std::string> reached(const CLI::App& program) {
  const CLI::App* app = &program;
  std::string name = app->get_name();
  while (app->remaining_size() == 0 && !app->get_subcommands().empty()) {
    app = app->get_subcommands().back();
    name += " " + app->get_name();
  }
  return {app, name};
}

// The message for a parse error. CLI11 reports a missing argument before an unknown one, but the unknown one is the better explanation.
std::string explanation(const CLI::App& app, const CLI::ParseError& error) {
  for (const std::string& word : app.remaining()) {
    if (word == "--") continue;
    std::vector<std::string> known;
    std::string kind = "argument", given = word;
    if (word.starts_with("-")) {
      kind = "option";
      given = word.substr(0, word.find('='));
      for (const CLI::Option* option : app.get_options())
        if (option->nonpositional()) known.push_back(option->get_name());
    } else if (app.get_subcommands().empty()) {
      for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) known.push_back(command->get_name());
      if (!known.empty()) kind = "command";
    }
    const std::string near = nearest(given, known);
    return "unknown " + kind + " " + in_quotes(given) + (near.empty() ? "" : "; did you mean '" + near + "'?");
  }
  return error.what();
}

}  // namespace

void CommandLine::add(const std::string& name, AnyTarget any, const std::string& help, bool required) {
  const auto add_one = [&]<class T>(Target<T> target) {
    const auto read = [name, target](const CLI::results_t& given) {
      if constexpr (IsList<T>::value) {
        target.value->clear();
        for (const std::string& text : given) parse(name, text, target.value->emplace_back(), Range<typename T::value_type>());
      } else {
        parse(name, given.back(), *target.value, target.range);
      }
      return true;
    };
    CLI::Option* option = app_->add_option(name, CLI::callback_t(read), help);
    option->type_size(1)->required(required);
    if constexpr (IsList<T>::value) {
      option->type_name(type_name(typename T::value_type()));
      // CLI11 splits "[a,b]" if a single occurrence may have several values. So an option takes one value per occurrence, and a positional
      // argument expects the largest possible number of values.
      constexpr int endless = CLI::detail::expected_max_vector_size;
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->expected(name.starts_with("-") ? 1 : endless, endless);
    } else {
      option->type_name(type_name(*target.value));
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // so that scripts can append an option to override it
      if (const std::string text = show(*target.value); !required) option->default_str(text);
    }
  };
  std::visit(add_one, any);
}

void CommandLine::add_flag(const std::string& name, bool& value, const std::string& help) { app_->add_flag(name, value, help); }

void CommandLine::needs(const std::string& name, const std::string& other) { app_->get_option(name)->needs(app_->get_option(other)); }

void CommandLine::offer(const std::string& name, std::function<std::vector<std::string>()> values, bool files_too) {
  (*offers_)[app_->get_option(name)] = {std::move(values), files_too};
}

void CommandLine::offer(const std::string& name, std::vector<std::string> values, bool files_too) {
  offer(
      name, [values = std::move(values)] { return values; }, files_too);
}

CommandLine CommandLine::add_subcommand(const std::string& name, const std::string& summary) {
  app_->require_subcommand(1);
  return CommandLine(*app_->add_subcommand(name, summary), *offers_);
}

CommandLine CommandLine::add_alternative(const std::string& name, const std::string& summary) {
  app_->require_subcommand(0, 1);
  return CommandLine(*app_->add_subcommand(name, summary), *offers_);
}

void CommandLine::callback(std::function<void()> body) {
  app_->callback([app = app_, body = std::move(body)] {
    if (app->get_subcommands().empty()) body();
  });
}

CommandEntry CommandLine::program_tree() const {
  const CLI::App* program = app_;
  while (program->get_parent() != nullptr) program = program->get_parent();
  return command_entry(*program, "", *offers_);
}

Program::Program(const std::string& name, const std::string& summary, const std::string& version_text)
    : app_(std::make_unique<CLI::App>(summary)) {
  app_->name(name);
  app_->set_version_flag("--version", name + " " + version_text);
}

Program::~Program() = default;

CommandLine Program::commands() { return CommandLine(*app_, offers_); }

void Program::run(int argc, char** argv) {
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string_view word = argv[i];
    // CLI11 would use the next argument as the value of "--option=".
    if (word.starts_with("--") && word.ends_with("=") && std::count(word.begin(), word.end(), '=') == 1) {
      const std::string option(word.substr(0, word.size() - 1));
      throw UsageError(option + "= has no value; an empty value is written " + option + " ''");
    }
  }
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      app_->exit(error, output(), output());
      return;
    }
    const auto [app, name] = reached(*app_);
    throw UsageError(explanation(*app, error) + "\nRun `" + name + " --help` for its options.");
  }
}

}  // namespace based::apps
