// SPDX-License-Identifier: MIT
// Bodies by Content-Length and by chunks, under limits of size, memory and time.
#include <algorithm>

#include "framing.h"

namespace tenon::http {

namespace {

constexpr int64_t kStep = 8 * 1024;  // bytes read between two looks at clock and budget

// Reading of one body: what has come so far and until when the next bytes must come.
class BodyReader {
  public:
    BodyReader(Wire& wire, const Settings& settings, BodyLease& lease, std::string* out)
        : wire_(wire),
          settings_(settings),
          lease_(lease),
          out_(out),
          started_us_(wire.host().now_us()) {}

    /// Appends exactly `bytes`.
    Refusal take(int64_t bytes) {
        const int64_t end = static_cast<int64_t>(out_->size()) + bytes;
        while (static_cast<int64_t>(out_->size()) < end) {
            const auto have = static_cast<int64_t>(out_->size());
            const int64_t n = std::min(end - have, kStep);
            // Taken as bytes come, not as they are announced: a header alone holds no memory.
            if (!lease_.grow_to(have + n)) {
                return unavailable("busy", "request bodies fill the memory set aside for them", 1);
            }
            out_->resize(static_cast<size_t>(have + n));
            int64_t got = 0;
            const ReadEnd ended =
                arm() ? wire_.read_some(out_->data() + have, n, &got) : ReadEnd::expired;
            out_->resize(static_cast<size_t>(have + got));
            if (Refusal refusal = check(ended)) {
                return refusal;
            }
        }
        return {};
    }

    Refusal line(std::string* text, int64_t limit) {
        const ReadEnd end = arm() ? wire_.read_line(text, limit) : ReadEnd::expired;
        if (Refusal refusal = check(end)) {
            return refusal;
        }
        if (!text->empty() && text->back() == '\n') {
            return bad_message("a line of the chunked body ends with LF instead of CRLF");
        }
        return {};
    }

  private:
    bool arm() {
        const auto received = static_cast<int64_t>(out_->size());
        return wire_.deadline().arm(started_us_ + settings_.timing.body_grace_us +
                                    received * 1'000'000 / settings_.timing.body_rate);
    }

    Refusal check(ReadEnd end) const {
        switch (end) {
            case ReadEnd::ok:
                return {};
            case ReadEnd::expired:
                return bad_message(
                    format("the body came too slowly: {} bytes so far", out_->size()), 408,
                    "request_timeout");
            case ReadEnd::too_long:
                return bad_message("a line of the chunked body is too long");
            case ReadEnd::closed:
                break;
        }
        return bad_message(format("the body ended after {} bytes, before its end", out_->size()));
    }

    Wire& wire_;
    const Settings& settings_;
    BodyLease& lease_;
    std::string* out_;
    const int64_t started_us_;
};

// "1a" or "1a;name=value": the size, or -1.
int64_t chunk_size(const std::string& line) {
    int64_t size = 0;
    size_t digits = 0;
    for (; digits < line.size(); ++digits) {
        const char c = line[digits];
        const int value = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (value < 0) {
            break;
        }
        if (digits >= 15) {
            return -1;
        }
        size = size * 16 + value;
    }
    const bool ends_well = digits == line.size() || line[digits] == ';';
    return digits > 0 && ends_well ? size : -1;
}

ApiError too_large(int64_t limit) {
    return bad_message(format("the body is larger than {} bytes (max_body)", limit), 413,
                       "body_too_large");
}

Refusal read_trailer(BodyReader& reader) {
    int64_t bytes = 0;
    for (;;) {
        std::string line;
        if (Refusal refusal = reader.line(&line, kMaxTrailerBytes - bytes)) {
            return refusal;
        }
        if (line.empty()) {
            return {};
        }
        bytes += static_cast<int64_t>(line.size()) + 2;
    }
}

Refusal read_chunks(BodyReader& reader, int64_t limit, std::string* out) {
    for (;;) {
        std::string line;
        if (Refusal refusal = reader.line(&line, kMaxChunkLine)) {
            return refusal;
        }
        const int64_t size = chunk_size(line);
        if (size < 0) {
            return bad_message("a chunk of the body does not start with its size in hexadecimal");
        }
        if (size == 0) {
            return read_trailer(reader);
        }
        if (static_cast<int64_t>(out->size()) + size > limit) {
            return too_large(limit);
        }
        if (Refusal refusal = reader.take(size)) {
            return refusal;
        }
        line.clear();
        if (Refusal refusal = reader.line(&line, kMaxChunkLine)) {
            return refusal;
        }
        if (!line.empty()) {
            return bad_message("a chunk of the body is longer than its size says");
        }
    }
}

}  // namespace

bool BodyBudget::take(int64_t bytes) {
    int64_t used = used_.load();
    while (used + bytes <= limit_) {
        if (used_.compare_exchange_weak(used, used + bytes)) {
            return true;
        }
    }
    return false;
}

bool BodyLease::grow_to(int64_t bytes) {
    if (bytes > held_) {
        if (!budget_.take(bytes - held_)) {
            return false;
        }
        held_ = bytes;
    }
    return true;
}

Refusal read_body(Wire& wire, const RequestHead& head, const Settings& settings, BodyLease& lease,
                  std::string* out) {
    BodyReader reader(wire, settings, lease, out);
    Refusal refusal;
    if (head.is_chunked) {
        refusal = read_chunks(reader, settings.max_body, out);
    } else if (head.content_length > settings.max_body) {
        refusal = too_large(settings.max_body);
    } else if (head.content_length > 0) {
        refusal = reader.take(head.content_length);
    }
    if (!refusal && !wire.deadline().disarm()) {
        return bad_message("the body came too slowly", 408, "request_timeout");
    }
    return refusal;
}

}  // namespace tenon::http
