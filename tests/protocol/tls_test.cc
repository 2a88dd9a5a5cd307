// SPDX-License-Identifier: MIT
// The listener with a certificate.
#include <Poco/Net/Context.h>
#include <Poco/Net/NetException.h>
#include <Poco/Net/SecureStreamSocket.h>
#include <Poco/Net/SocketAddress.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

#include "protocol/frontend_rig.h"

namespace tenon::testing {

namespace {

namespace net = Poco::Net;

// A self-signed certificate, made here so that no private key lies in the repository.
void write_certificate(const std::string& cert_file, const std::string& key_file) {
    const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
    const std::unique_ptr<X509, void (*)(X509*)> cert(X509_new(), X509_free);
    ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert.get()), 3600);
    X509_set_pubkey(cert.get(), key.get());
    X509_NAME* name = X509_get_subject_name(cert.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
    X509_set_issuer_name(cert.get(), name);
    ASSERT_GT(X509_sign(cert.get(), key.get(), EVP_sha256()), 0);
    std::FILE* out = std::fopen(cert_file.c_str(), "w");
    ASSERT_EQ(PEM_write_X509(out, cert.get()), 1);
    std::fclose(out);
    out = std::fopen(key_file.c_str(), "w");
    ASSERT_EQ(PEM_write_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr), 1);
    std::fclose(out);
}

class Tls : public ::testing::Test {
  protected:
    Tls() {
        settings_.tls_cert = dir_.path() / "cert.pem";
        settings_.tls_key = dir_.path() / "key.pem";
        settings_.timing.head_us = 500'000;
        write_certificate(settings_.tls_cert, settings_.tls_key);
    }

    static std::string ask(int port, const std::string& request, int disabled_protocols = 0) {
        net::Context::Ptr context(
            new net::Context(net::Context::TLS_CLIENT_USE, "", "", "", net::Context::VERIFY_NONE));
        context->disableProtocols(disabled_protocols);
        net::SecureStreamSocket socket(
            net::SocketAddress("127.0.0.1", static_cast<Poco::UInt16>(port)), context);
        socket.sendBytes(request.data(), static_cast<int>(request.size()));
        std::string out;
        char bytes[4096];
        for (int n = 0; (n = socket.receiveBytes(bytes, sizeof bytes)) > 0;) {
            out.append(bytes, static_cast<size_t>(n));
        }
        return out;
    }

    TempDir dir_;
    http::Settings settings_;
};

TEST_F(Tls, Request_and_stream_work) {
    FrontendRig rig(settings_);
    EXPECT_EQ(rig.frontend->url().str().rfind("https://", 0), 0U);

    EXPECT_NE(ask(rig.port, get("/health", "Connection: close\r\n")).find("\"ok\""),
              std::string::npos);
    Json body = chat_body("secret");
    body["stream"] = true;
    const std::string stream =
        ask(rig.port, post("/v1/chat/completions", body.dump(), "Connection: close\r\n"));
    EXPECT_NE(stream.find("secret"), std::string::npos);
    EXPECT_NE(stream.find("[DONE]"), std::string::npos);
}

TEST_F(Tls, Old_versions_are_refused) {
    FrontendRig rig(settings_);
    EXPECT_THROW(ask(rig.port, get("/health", "Connection: close\r\n"),
                     net::Context::PROTO_TLSV1_2 | net::Context::PROTO_TLSV1_3),
                 Poco::Exception);
}

TEST_F(Tls, Plain_and_silent_clients_are_dropped) {
    FrontendRig rig(settings_);
    RawClient plain(rig.port), silent(rig.port);
    plain.send(get("/health"));
    EXPECT_TRUE(plain.is_closed_within(3000));
    EXPECT_TRUE(silent.is_closed_within(3000));
    EXPECT_NE(ask(rig.port, get("/health", "Connection: close\r\n")).find("\"ok\""),
              std::string::npos);
}

TEST_F(Tls, Unusable_files_are_named_at_start) {
    settings_.bind = "127.0.0.1:0";
    settings_.tls_key = settings_.tls_cert;  // a certificate is no key
    TestHost host;
    FakeEngine engine;
    auto made = http::make_frontend(host, engine, settings_);
    TENON_EXPECT_ERROR((*made)->start(), Code::invalid_argument, "cert.pem");
}

}  // namespace

}  // namespace tenon::testing
