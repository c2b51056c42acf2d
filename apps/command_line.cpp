#include "apps/command_line.h"

#include <CLI/CLI.hpp>
#include <type_traits>

namespace based::apps {

void CommandLine::add(const std::string& name, Value value, const std::string& help, bool required) {
  std::visit(
      [&](auto* target) {
        CLI::Option* option = app_->add_option(name, *target, help);
        constexpr bool is_list =
            std::is_same_v<decltype(target), std::vector<std::string>*> || std::is_same_v<decltype(target), std::vector<int64_t>*>;
        if (!is_list) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // scripts append what they override
        bool has_default = true;
        if constexpr (requires { target->empty(); }) has_default = !target->empty();
        if (required)
          option->required();
        else if (has_default)
          option->capture_default_str();
      },
      value);
}

void CommandLine::add_flag(const std::string& name, bool& value, const std::string& help) { app_->add_flag(name, value, help); }

CommandLine CommandLine::add_subcommand(const std::string& name, const std::string& summary) {
  app_->require_subcommand(1);
  return CommandLine(*app_->add_subcommand(name, summary));
}

void CommandLine::callback(std::function<void()> body) { app_->callback(std::move(body)); }

}  // namespace based::apps
