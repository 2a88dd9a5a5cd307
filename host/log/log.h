// SPDX-License-Identifier: MIT
// The one log of the process: human text on a terminal, JSON lines elsewhere.
#pragma once

#include <string>

#include "tenon/host.h"

namespace tenon {

enum class LogFormat { automatic, text, json };

struct LogSettings {
    LogLevel level = LogLevel::info;
    LogFormat format = LogFormat::automatic;
    std::string file;  ///< "" = stderr
};

/// Sets the sink up; may be called again. Before the first call lines of level info and above go to
/// stderr as text. errors  io: the file cannot be opened
Status log_configure(const LogSettings& settings);
/// Opens the log file anew (after rotation). Any thread.
void log_reopen() noexcept;
/// Writes out what is buffered; call before the process ends.
void log_flush() noexcept;
bool log_enabled(LogLevel level) noexcept;
/// One line. Any thread.
void log_line(LogLevel level, StrView component, StrView message) noexcept;

}  // namespace tenon
