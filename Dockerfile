# The images of imdsd, for hypervisors that run services in containers, and of imds-api, for the control plane. docs/install.md#in-a-container builds
# them, and deploy/compose.yaml runs them. They contain what `npm run build` has made; it needs no packages of npm.
#
#   docker run --network host --read-only --cap-drop ALL --env-file imds.env --volume imds:/var/lib/imds --volume /run/imds:/run/imds imdsd
#   docker run --network host --read-only --cap-drop ALL --env-file imds-api.env imds-api
#
# Both need the network of their host: guests are identified by their addresses there, and imds-api without a certificate listens on loopback only. The users
# (61000 of imdsd, 61001 of imds-api) have no capability, so allow port 80 on the hypervisor with `sysctl net.ipv4.ip_unprivileged_port_start=80`. Their ids are
# of no user that a distribution makes: a user of the host with the same id could read secrets. The address comes from systemd/imds-address.service. /run/imds has
# the unix socket for imdsctl and the firewall's agent: create it on the hypervisor, owned by 61000, mode 0750.
# There is no HEALTHCHECK, because it would start a second Node.js each time. Ask /livez and /readyz of the operators' listener instead.

ARG NODE_IMAGE=node:26-slim

FROM ${NODE_IMAGE} AS programs
COPY dist /imdsd
RUN cd /imdsd && chmod 755 bin/* && rm -rf completions man types && mkdir -p /imds-api/bin && mv bin/imds-api /imds-api/bin && mv api api.js /imds-api

FROM ${NODE_IMAGE} AS node
ENV NODE_ENV=production PATH=/opt/imds/dist/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /opt/imds
# A service needs no package manager.
RUN cd /usr/local && rm -rf lib/node_modules bin/npm bin/npx bin/corepack bin/yarn bin/yarnpkg /opt/yarn*
COPY package.json LICENSE ./

FROM node AS imds-api
COPY --from=programs /imds-api dist
USER 61001:61001
STOPSIGNAL SIGTERM
ENTRYPOINT ["node", "--max-semi-space-size=2", "--no-concurrent-recompilation", "dist/api.js"]

FROM node AS imdsd
RUN install -d -o 61000 -g 61000 -m 700 /var/lib/imds && install -d -o 61000 -g 61000 -m 750 /run/imds
COPY --from=programs /imdsd dist
VOLUME /var/lib/imds /run/imds
USER 61000:61000
STOPSIGNAL SIGTERM
ENTRYPOINT ["node", "--max-semi-space-size=2", "--max-old-space-size=1024", "--no-parallel-scavenge", "--no-concurrent-recompilation", "dist/main.js"]
