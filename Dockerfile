# The daemon as an image, for hosts that run containers; systemd/imds.service has the stronger sandbox.
#
#   docker run --network host --read-only --cap-drop ALL --env-file imds.env --volume imds:/var/lib/imds imds
#
# The host's network, since a guest is known by its address there. The user is not root and a container gives it no capability: for
# port 80 the host says `sysctl net.ipv4.ip_unprivileged_port_start=80`. The address comes from systemd/imds-address.service.
# No HEALTHCHECK: it would start a second Node every time, at a port that the configuration may move; ask /livez and /readyz
# of the operators' listener instead.

ARG NODE_IMAGE=node:26-slim

FROM ${NODE_IMAGE} AS build
WORKDIR /build
COPY package.json package-lock.json ./
# No scripts: one would download a second runtime, the package "node" that pins a developer's.
RUN npm ci --ignore-scripts
COPY tsconfig.json tsconfig.build.json rolldown.config.js ./
COPY src src
RUN npm run build

FROM ${NODE_IMAGE}
ENV NODE_ENV=production
WORKDIR /opt/imds
RUN install -d -o node -g node -m 700 /var/lib/imds
COPY --from=build /build/package.json ./
COPY --from=build /build/dist dist
VOLUME /var/lib/imds
USER node
STOPSIGNAL SIGTERM
ENTRYPOINT ["node", "--max-semi-space-size=2", "--max-old-space-size=1024", "--single-threaded-gc", "--no-allocation-site-pretenuring", "dist/main.js"]
